"""001, two manifolds: the tables of "Siamese Networks: The Tale of Two Manifolds"."""

from collections.abc import Sequence

from papers.harness.lab import Lab
from papers.harness.plan import Chapter, Table, Work
from papers.manifolds.compared import Trial
from papers.manifolds.digits_table import Digits
from papers.manifolds.faces_table import Frozen
from papers.manifolds.network_table import Network
from papers.manifolds.part import Part
from papers.manifolds.whole_table import Whole, quoted

COMPARED = ("qconv", "qconv-inverse", "stiefel")
HEADER = (
    "What each geometry gains over the plain layer (Conv) in every experiment that can be run here, in points of what "
    "is right (1 - error, accuracy, R@1), [95 %], p by permutation: the same digits, photos or queries under both, "
    "swapped and resampled whole (by digit, by person). The paper says that both geometries gain."
)


def chapter(lab: Lab) -> Chapter:
    parts: list[Part] = [Digits(lab), Network(lab)]
    if lab.photos.has("celeba") and not lab.scope.quick:
        parts += [Frozen(lab), Whole(lab)]

    def works() -> list[Work]:
        return [work for part in parts for work in part.works()]

    def tables() -> Sequence[Table]:
        found = [table for part in parts for table in part.tables()]
        return [
            gains([trial for part in parts for trial in part.trials()], lab.scope.quick),
            *found[:2],
            quoted(),
            *found[2:],
        ]

    return Chapter("manifolds", "Two manifolds (001)", works, tables)


def gains(trials: Sequence[Trial], quick: bool) -> Table:
    rows = [trial.row(head) for trial in trials for head in COMPARED]
    notes = ["A quick look leaves out unseen people (tables 3 to 5): their photos alone take minutes."] if quick else []
    return Table("manifolds-gains", "The geometries against the plain layer", HEADER, ("gain",), rows, notes=notes)
