"""What the options are chosen among, and where the choice begins."""

from papers.clml.choice import Case, Grid
from papers.clml.fits import KS, NAMES, Options

START: dict[Case, Options] = {(f, kind): Options() for f in NAMES for kind in ("queries", "disjoint")}
KNOWN = {"axes": 4000, "shrink": 0.0}
"""Where people learned from are searched for: as many axes as there is time for, and nothing that holds L back."""
FREE = {"pull": 0.0, "anchor": 1e-4, "local_rate": 0.02, "steps": 600}
"""Local maps that go their own way."""
OF_KNOWN = ([{}, KNOWN, {**KNOWN, "spherical": 0.7}], [FREE, {**FREE, "spherical": 0.0}])
HELD = {"anchor": 0.1, "rescale": False}
"""Local maps that leave what the first map learned as it is, and hardly move apart."""
OF_STRANGERS = ([{}, {"spherical": 0.7}], [{}, {"pull": 2.5e-5}, HELD], (4, 16))
GRIDS: dict[Case, Grid] = {
    ("lbp", "queries"): Grid(*OF_KNOWN, KS),
    ("fisher", "queries"): Grid(*OF_KNOWN, (8, 16, 32)),
    ("mobilefacenet", "queries"): Grid([{}, {"ridge": 3e-3}, {"rate": 0.005}], [{}, FREE], KS),
    ("lbp", "disjoint"): Grid(*OF_STRANGERS),
    ("fisher", "disjoint"): Grid(*OF_STRANGERS),
    ("mobilefacenet", "disjoint"): Grid([{}, {"ridge": 3e-3}, {"rate": 0.005}], [{}], (4, 16)),
}
