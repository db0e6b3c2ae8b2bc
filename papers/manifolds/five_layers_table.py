"""001's STL10 experiment, from the results of five layers."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from papers.harness.results import percent
from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, Declared, Row, Table
from papers.manifolds import five_layers, head_comparison
from papers.manifolds.experiment import SAME_START_NOTE, Experiment, list_all
from papers.manifolds.head_comparison import HeadComparison, PairedScores, read_correct, read_correct_flat
from papers.manifolds.head_layers import HEADS

COLUMNS = ("accuracy", "gain over Conv", "accuracy, equal axes", "axes", "epoch")
HEADS_HERE = ("rmsprop", "plain", "qconv", "qconv-inverse", "stiefel")
ACCURACY = {"plain": 42.7, "qconv": 48.5, "stiefel": 48.6}
SECONDS = {"plain": 143, "qconv": 150, "stiefel": 152}
GAINS = {"qconv": 48.5 - 42.7, "stiefel": 48.6 - 42.7}
LFW_CLASSES, CELEBA_CLASSES = ("lfw", 20), ("celeba", 3)
"""Photo sets, and the number of photos that a person needs to be a class."""
NAMES = {LFW_CLASSES: "LFW, people with 20 photos or more", CELEBA_CLASSES: "CelebA10k, people with 3 photos or more"}
HEADER = (
    "STL10 is not available here. People are the classes: {names}; half of each person's photos teach, the others are "
    "tested (split {splits} times). conv 5x5, max-pool, relu, conv 5x5, relu, avg-pool, conv 5x5, relu, conv 4x4, relu "
    "on 32 x 32 colours, widths 32, 32, 64, 64 (the paper prints none), and a head 1600 -> 32 for fc5; tau = 1, "
    "batches of 20 people x 5, {steps} steps, {rates} (of LFW); the layers before by RMSProp at 0.001. Accuracy of the "
    "nearest neighbour in percent, ± over splits, [95 %, bootstrap over people]; the other columns as in Table 2."
)
PAPER_ELSE = "other pictures and other classes than the paper's: only the differences compare"


class FiveLayerExperiment(Experiment):
    """The table of five layers, once with few classes of many photos, once with many of few.

    sizes: steps, rounds of timing
    """

    sizes: ClassVar = {True: (60, 2), False: (400, 7)}

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.steps, self.rounds = self.sizes[self.quick]
        self.sets = (
            [LFW_CLASSES]
            if self.quick
            else [one for one in (LFW_CLASSES, CELEBA_CLASSES) if context.photos.has(one[0])]
        )
        self.seeds = context.scope.few_seeds

    @property
    def choices(self) -> dict[str, Computation]:
        return {
            head: five_layers.make_choice_computation(self.context, *LFW_CLASSES, head, self.steps // 2)
            for head in HEADS_HERE
        }

    def chosen_computations(self) -> list[Computation]:
        return [*(computation for one in self.sets for computation in list_all(self._learned(one))), self._times]

    def tables(self) -> Sequence[Table]:
        names = "; ".join(NAMES[one] for one in self.sets)
        header = HEADER.format(names=names, splits=len(self.seeds), steps=self.steps, rates=self.how)
        rows = [self._row(one, head) for one in self.sets for head in HEADS_HERE]
        notes = [f"{self.describe_rates()}; of Stiefel's S, by RMSProp, {five_layers.FINE_RATE:g}.", SAME_START_NOTE]
        return [Table("manifolds-stl10", "The STL10 experiment: five layers", header, COLUMNS, rows, notes=notes)]

    def trials(self) -> Sequence[HeadComparison]:
        return [self._trial(one) for one in self.sets]

    def _trial(self, one: tuple[str, int]) -> HeadComparison:
        computations = self._learned(one)
        results = {head: self.context.results(computations[head]) for head in computations}
        own, alike = (
            head_comparison.score_heads(results, value, "whose") for value in (read_correct, read_correct_flat)
        )
        return HeadComparison(
            f"five layers, {NAMES[one]}", own, head_comparison.summarise_heads(results), computations, alike, GAINS
        )

    def _learned(self, one: tuple[str, int]) -> Mapping[str, list[Computation]]:
        plans = {
            h: [five_layers.plan_training(h, rate, self.steps, s) for s in self.seeds] for h, rate in self.known.items()
        }
        return {
            head: [five_layers.make_head_computation(self.context, *one, plan) for plan in group]
            for head, group in plans.items()
        }

    @property
    def _times(self) -> Computation:
        return five_layers.make_timing_computation(self.context, *LFW_CLASSES, self.known, self.rounds)

    def _row(self, one: tuple[str, int], head: str) -> Row:
        computations = self._learned(one)
        results = self.context.results(computations[head])
        own = PairedScores.of(results, read_correct, "whose")
        figures = {
            "accuracy": own.figure,
            "accuracy, equal axes": PairedScores.of(results, read_correct_flat, "whose").figure,
        }
        figures["axes"] = head_comparison.mean_axes(results)
        if head != "plain":
            conv = PairedScores.of(self.context.results(computations["plain"]), read_correct, "whose")
            figures["gain over Conv"] = percent(own.over(conv).difference, draws=len(results))
        if one == LFW_CLASSES:
            figures["epoch"] = head_comparison.summarise_ratios(self.context.result(self._times).record["ratios"][head])
        paper = {}
        if one == LFW_CLASSES and head in ACCURACY:
            paper = {"accuracy": ACCURACY[head], "epoch": round(100 * SECONDS[head] / SECONDS["plain"], 1)}
        about = {"photos": one[0], "least": one[1], "rate": self.known[head], "steps": self.steps}
        name = f"{NAMES[one]}: {HEADS[head].title}"
        verdict: Declared | None = "not possible here" if paper else None
        return Row(name, figures, paper, verdict, PAPER_ELSE if paper else "", about, computations[head])
