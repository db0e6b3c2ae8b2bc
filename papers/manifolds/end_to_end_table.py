"""001, Tables 3 to 5 end to end, and the paper's own figures, whose photos are not available."""

from collections.abc import Sequence

from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, Row, Table
from papers.manifolds import end_to_end
from papers.manifolds.experiment import SAME_START_NOTE, Experiment, list_all
from papers.manifolds.frozen_network_table import COLUMNS, FrozenNetworkExperiment, choices, describe_data, row, trial
from papers.manifolds.head_comparison import HeadComparison
from papers.manifolds.head_layers import HEADS

HEADS_HERE = ("plain", "qconv", "qconv-inverse", "stiefel")
WHOLE = (
    "A light net of 0.4 million weights, taught {first} steps of {batch} photos by pairs; the paper has Inception "
    "and a classification loss; then {steps} steps with a head 128 -> {dim} behind it, the net by RMSProp at {fine:g}, "
    "rates as chosen on MobileFaceNet. Short, for want of a GPU: only the differences say something."
)
QUOTED: dict[str, tuple[tuple[str, ...], dict[str, tuple[float, ...]]]] = {
    "CUB-200-2011": (
        ("NMI", "R@1", "R@2", "R@4", "R@8"),
        {
            "Trip-SH": (55.4, 42.6, 54.9, 66.4, 77.2),
            "qConv": (62.5, 52.2, 64.0, 75.7, 83.3),
            "Stiefel": (62.3, 52.3, 64.5, 75.3, 84.0),
        },
    ),
    "CARS196": (
        ("NMI", "R@1", "R@2", "R@4", "R@8"),
        {
            "Trip-SH": (53.4, 51.5, 63.8, 73.5, 82.4),
            "qConv": (63.5, 71.9, 81.5, 87.9, 92.5),
            "Stiefel": (64.2, 73.2, 82.2, 88.6, 92.2),
        },
    ),
    "SOP": (
        ("NMI", "R@1", "R@10"),
        {"Trip-SH": (89.5, 66.7, 82.4), "qConv": (89.3, 68.5, 82.9), "Stiefel": (89.9, 69.2, 83.1)},
    ),
}
NO_PHOTOS = "its photos and an Inception network are not available here; people stand in, in the next tables"


class EndToEndExperiment(Experiment):
    """A small network and its head, trained together. first: steps by pairs; steps: steps with a head"""

    first, steps = 500, 120

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.seeds = range(min(2, len(context.scope.few_seeds)))

    @property
    def choices(self) -> dict[str, Computation]:
        return {
            h: w
            for h, w in choices(self.context, FrozenNetworkExperiment.steps, FrozenNetworkExperiment.min_photos).items()
            if h in HEADS_HERE
        }

    def chosen_computations(self) -> list[Computation]:
        return [self._begun, *(list_all(self._learned) if self.context.store.has(self._begun) else [])]

    def tables(self) -> Sequence[Table]:
        header = describe_data(self.context, FrozenNetworkExperiment.min_photos) + WHOLE.format(
            first=self.first, batch=end_to_end.BATCH, steps=self.steps, dim=end_to_end.DIM, fine=end_to_end.FINE_RATE
        )
        computations = self._learned
        rows = [row("where it begins, 128 numbers", self.context, [self._begun])]
        rows += [
            row(HEADS[head].title, self.context, computations[head], computations["plain"]) for head in computations
        ]
        title = "Tables 3 to 5, with people: end to end"
        return [
            Table("manifolds-whole", title, header, COLUMNS, rows, notes=[f"{self.describe_rates()}.", SAME_START_NOTE])
        ]

    def trials(self) -> Sequence[HeadComparison]:
        return [trial("end to end, R@1", self.context, self._learned)]

    @property
    def _begun(self) -> Computation:
        return end_to_end.make_start_computation(self.context, self.first, FrozenNetworkExperiment.min_photos)

    @property
    def _learned(self) -> dict[str, list[Computation]]:
        plans = {
            h: [end_to_end.plan_training(h, rate, self.steps, s) for s in self.seeds] for h, rate in self.known.items()
        }
        first = self._begun
        return {
            h: [
                end_to_end.make_head_computation(self.context, first, plan, FrozenNetworkExperiment.min_photos)
                for plan in group
            ]
            for h, group in plans.items()
        }


def quoted() -> Table:
    """Return the paper's figures, which cannot be reproduced here."""
    rows = [
        Row(f"{data}: {name}", {}, dict(zip(columns, figures, strict=True)), "not possible here", NO_PHOTOS)
        for data, (columns, figures_by_method) in QUOTED.items()
        for name, figures in figures_by_method.items()
    ]
    notes = ["Trip-SH has a plain layer. Its R@100 on SOP is printed below its R@10, which cannot be, and is left out."]
    columns = ("NMI", "R@1", "R@2", "R@4", "R@8", "R@10")
    return Table("manifolds-quoted", "Tables 3 to 5: as printed", "In percent.", columns, rows, notes=notes)
