"""The candidates among which options are chosen, and the initial options."""

from papers.clml.fits import DESCRIPTOR_NAMES, LOCAL_MAP_COUNTS, Options
from papers.clml.option_choice import Case, OptionGrid

START_OPTIONS: dict[Case, Options] = {
    (f, kind): Options() for f in DESCRIPTOR_NAMES for kind in ("queries", "disjoint")
}
MANY_AXES = {"axes": 4000, "shrink": 0.0}
"""For searches for people learned from: many axes, and no regulariser."""
LONG_UNPULLED = {"pull": 0.0, "anchor": 1e-4, "local_rate": 0.02, "steps": 600}
"""Local maps with little regularisation."""
CLOSED_SET_GRID = (
    [{}, MANY_AXES, {**MANY_AXES, "spherical": 0.7}],
    [LONG_UNPULLED, {**LONG_UNPULLED, "spherical": 0.0}],
)
ANCHORED = {"anchor": 0.1, "rescale": False}
"""Local maps that stay close to the first map."""
NEVER_SEEN_GRID = ([{}, {"spherical": 0.7}], [{}, {"pull": 2.5e-5}, ANCHORED], (4, 16))
GRIDS: dict[Case, OptionGrid] = {
    ("lbp", "queries"): OptionGrid(*CLOSED_SET_GRID, LOCAL_MAP_COUNTS),
    ("fisher", "queries"): OptionGrid(*CLOSED_SET_GRID, (8, 16, 32)),
    ("mobilefacenet", "queries"): OptionGrid(
        [{}, {"ridge": 3e-3}, {"rate": 0.005}], [{}, LONG_UNPULLED], LOCAL_MAP_COUNTS
    ),
    ("lbp", "disjoint"): OptionGrid(*NEVER_SEEN_GRID),
    ("fisher", "disjoint"): OptionGrid(*NEVER_SEEN_GRID),
    ("mobilefacenet", "disjoint"): OptionGrid([{}, {"ridge": 3e-3}, {"rate": 0.005}], [{}], (4, 16)),
}
