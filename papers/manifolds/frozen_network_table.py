"""001, Tables 3 to 5 with people instead of birds, cars and products: a head on a frozen CNN."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ml.evaluation.intervals import over_draws
from papers.harness.results import percent
from papers.harness.run_context import RunContext
from papers.harness.table_types import Computation, Figure, Result, Row, Table
from papers.manifolds import frozen_network, head_comparison
from papers.manifolds.experiment import SAME_START_NOTE, Experiment, list_all
from papers.manifolds.head_comparison import HeadComparison, PairedScores, read_recall
from papers.manifolds.head_layers import HEADS
from papers.manifolds.people_split import LOOKALIKE_COSINE, split_people

RECALL_RANKS = (1, 2, 4, 8)
COLUMNS = ("NMI", *(f"R@{k}" for k in RECALL_RANKS), "R@1 over Conv", "NMI over Conv", "axes")
HEADS_HERE = ("rmsprop", "plain", "qconv", "qconv-inverse", "stiefel")
SERVED = ("qconv", "stiefel")
DIMS = (32, 128)
HEADER = (
    "CelebA10k teaches, {taught:,} photos of {people:,} people ({alike:,} more were left out, whom MobileFaceNet finds "
    "as near as cosine {near} to somebody in LFW); LFW is tested, {queries:,} photos of {query_people:,} people with "
    "{min_photos} or more, each a query among all others. NMI of k-means with as many clusters as people: with few "
    "photos each, chance "
    "alone gives high values. In percent, ± over seeds, [95 %, bootstrap over people; NMI: Student over seeds]; over "
    "Conv: paired; axes: as in Table 2. "
)
FROZEN = "A head on MobileFaceNet's 128 numbers, which stay: tau = 0.5, batches of 32 people x 2, {steps} steps, {how}."


class FrozenNetworkExperiment(Experiment):
    """Heads on MobileFaceNet.

    steps; min_photos: that somebody in LFW must have; options: of the service's own training
    """

    steps, min_photos = 3000, 2
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        self.seeds = context.scope.few_seeds

    @property
    def choices(self) -> dict[str, Computation]:
        return choices(self.context, self.steps, self.min_photos)

    def chosen_computations(self) -> list[Computation]:
        learned = [computation for dim in DIMS for computation in list_all(self._learned(dim))]
        return [*learned, *list_all(self._served), self._itself, *(self._start(dim) for dim in DIMS)]

    def tables(self) -> Sequence[Table]:
        header = describe_data(self.context, self.min_photos) + FROZEN.format(steps=self.steps, how=self.how)
        rows = [row("the feature itself", self.context, [self._itself])]
        for dim in DIMS:
            computations = self._learned(dim)
            rows.append(row(f"{dim}: its principal axes, where heads start", self.context, [self._start(dim)]))
            rows += [
                row(f"{dim}: {HEADS[h].title}", self.context, computations[h], computations["plain"])
                for h in computations
            ]
        rows += [row(name, self.context, computations) for name, computations in self._served.items()]
        title = "Tables 3 to 5, with people: heads on a frozen CNN"
        return [
            Table(
                "manifolds-frozen", title, header, COLUMNS, rows, notes=[f"{self.describe_rates()}.", SAME_START_NOTE]
            )
        ]

    def trials(self) -> Sequence[HeadComparison]:
        return [trial(f"MobileFaceNet to {dim}, R@1", self.context, self._learned(dim)) for dim in DIMS]

    def _learned(self, dim: int) -> dict[str, list[Computation]]:
        plans = {
            h: [frozen_network.plan_training(h, rate, self.steps, s) for s in self.seeds]
            for h, rate in self.known.items()
        }
        return {
            h: [frozen_network.make_head_computation(self.context, dim, plan, self.min_photos) for plan in group]
            for h, group in plans.items()
        }

    @property
    def _served(self) -> dict[str, list[Computation]]:
        return {
            f"{dim}: {method} as the service trains it": [
                frozen_network.make_service_computation(self.context, method, self.options, dim, self.min_photos, seed)
                for seed in self.seeds
            ]
            for dim in DIMS
            for method in SERVED
        }

    @property
    def _itself(self) -> Computation:
        return frozen_network.make_axes_computation(self.context, 0, self.min_photos)

    def _start(self, dim: int) -> Computation:
        return frozen_network.make_axes_computation(self.context, dim, self.min_photos)


def choices(context: RunContext, steps: int, min_photos: int) -> dict[str, Computation]:
    return {
        head: frozen_network.make_choice_computation(context, head, DIMS[0], steps, min_photos) for head in HEADS_HERE
    }


def describe_data(context: RunContext, min_photos: int) -> str:
    """Describe the training and the test data."""
    both = split_people(context.photos, min_photos)
    return HEADER.format(
        taught=len(both.taught), people=int(both.people.max()) + 1, alike=both.alike, near=LOOKALIKE_COSINE,
        queries=len(both.queries), query_people=int(both.query_people.max()) + 1, min_photos=min_photos,
    )  # fmt: skip


def row(
    name: str, context: RunContext, computations: Sequence[Computation], conv: Sequence[Computation] | None = None
) -> Row:
    results = context.results(computations)
    figures = {"NMI": _over_seeds([r.record["nmi"] for r in results])}
    figures |= {f"R@{k}": PairedScores.of(results, read_recall(k), "whose").figure for k in RECALL_RANKS}
    if "axes" in results[0].record:
        figures["axes"] = head_comparison.mean_axes(results)
    if conv is not None and list(conv) != list(computations):
        others = context.results(conv)
        gain = PairedScores.of(results, read_recall(1), "whose").over(PairedScores.of(others, read_recall(1), "whose"))
        figures["R@1 over Conv"] = percent(gain.difference, draws=len(results))
        both = zip(results, others, strict=True)
        figures["NMI over Conv"] = _over_seeds([a.record["nmi"] - b.record["nmi"] for a, b in both])
    return Row(name, figures, about=_about(results), computations=computations)


def trial(title: str, context: RunContext, computations: Mapping[str, Sequence[Computation]]) -> HeadComparison:
    results = {head: context.results(group) for head, group in computations.items()}
    judged = head_comparison.score_heads(results, read_recall(1), "whose")
    matrix_gap = (
        head_comparison.measure_matrix_gap(results, "qconv") if "matrix" in results["qconv"][0].arrays else float("nan")
    )
    return HeadComparison(title, judged, head_comparison.summarise_heads(results), computations, matrix_gap=matrix_gap)


def _over_seeds(values: Sequence[float]) -> Figure:
    sample = np.array(values)
    sd = float(np.std(sample, ddof=1)) if len(sample) > 1 else float("nan")
    one = percent(over_draws(sample), sd, len(sample))
    return one if len(sample) > 1 else Figure(one.value)


def _about(results: Sequence[Result]) -> dict[str, Any]:
    keys = [r.record["key"] for r in results]
    return {"data": "identities-celeba10k, lfw-deepfunneled", "seeds": len(keys), "what": keys[0]["what"]}
