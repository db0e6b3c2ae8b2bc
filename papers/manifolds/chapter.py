"""001, two manifolds: the tables of "Siamese Networks: The Tale of Two Manifolds"."""

from collections.abc import Sequence

from papers.harness.run_context import RunContext
from papers.harness.table_types import Chapter, Computation, Table
from papers.manifolds.digits_table import DigitExperiment
from papers.manifolds.end_to_end_table import EndToEndExperiment, quoted
from papers.manifolds.experiment import Experiment
from papers.manifolds.five_layers_table import FiveLayerExperiment
from papers.manifolds.frozen_network_table import FrozenNetworkExperiment
from papers.manifolds.head_comparison import HeadComparison

COMPARED = ("qconv", "qconv-inverse", "stiefel")
HEADER = (
    "What each geometry gains over the plain layer (Conv) in every experiment that can be run here, in points of what "
    "is right (1 - error, accuracy, R@1), [95 %], p by permutation: the same digits, photos or queries under both, "
    "swapped and resampled whole (by digit, by person). The paper says that both geometries gain."
)


def chapter(context: RunContext) -> Chapter:
    parts: list[Experiment] = [DigitExperiment(context), FiveLayerExperiment(context)]
    if context.photos.has("celeba") and not context.scope.quick:
        parts += [FrozenNetworkExperiment(context), EndToEndExperiment(context)]

    def computations() -> list[Computation]:
        return [computation for part in parts for computation in part.computations()]

    def tables() -> Sequence[Table]:
        made = [table for part in parts for table in part.tables()]
        return [
            gains([trial for part in parts for trial in part.trials()], context.scope.quick),
            *made[:2],
            quoted(),
            *made[2:],
        ]

    return Chapter("manifolds", "Two manifolds (001)", computations, tables)


def gains(trials: Sequence[HeadComparison], quick: bool) -> Table:
    rows = [trial.row(head) for trial in trials for head in COMPARED]
    notes = ["A quick look leaves out unseen people (tables 3 to 5): their photos alone take minutes."] if quick else []
    return Table(
        "manifolds-gains", "Gains of the geometries over the plain layer", HEADER, ("gain",), rows, notes=notes
    )
