"""What the options are chosen among, and where the choice begins."""

from app.cli.reproduce._clml_choice import Case, Grid
from app.cli.reproduce._clml_fits import KS, NAMES, Options

START: dict[Case, Options] = {(f, kind): Options() for f in NAMES for kind in ("queries", "disjoint")}
GRIDS: dict[Case, Grid] = {
    ("lbp", "queries"): Grid([{}], [{}], KS),
}
