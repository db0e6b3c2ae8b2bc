"""The candidates among which options are chosen, and the initial options."""

from papers.clml.fits import KS, NAMES, Options
from papers.clml.option_choice import Case, OptionGrid

START: dict[Case, Options] = {(f, kind): Options() for f in NAMES for kind in ("queries", "disjoint")}
KNOWN = {"axes": 4000, "shrink": 0.0}
"""For searches for people learned from: many axes, and no regulariser."""
FREE = {"pull": 0.0, "anchor": 1e-4, "local_rate": 0.02, "steps": 600}
"""Local maps with little regularisation."""
OF_KNOWN = ([{}, KNOWN, {**KNOWN, "spherical": 0.7}], [FREE, {**FREE, "spherical": 0.0}])
HELD = {"anchor": 0.1, "rescale": False}
"""Local maps that stay close to the first map."""
OF_STRANGERS = ([{}, {"spherical": 0.7}], [{}, {"pull": 2.5e-5}, HELD], (4, 16))
GRIDS: dict[Case, OptionGrid] = {
    ("lbp", "queries"): OptionGrid(*OF_KNOWN, KS),
    ("fisher", "queries"): OptionGrid(*OF_KNOWN, (8, 16, 32)),
    ("mobilefacenet", "queries"): OptionGrid([{}, {"ridge": 3e-3}, {"rate": 0.005}], [{}, FREE], KS),
    ("lbp", "disjoint"): OptionGrid(*OF_STRANGERS),
    ("fisher", "disjoint"): OptionGrid(*OF_STRANGERS),
    ("mobilefacenet", "disjoint"): OptionGrid([{}, {"ridge": 3e-3}, {"rate": 0.005}], [{}], (4, 16)),
}
