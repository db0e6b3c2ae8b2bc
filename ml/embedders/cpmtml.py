"""CP-mtML: coupled projections for several tasks, learned from pairs.

Source: Bhattarai, Sharma, Jurie 2016, Algorithm 1.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from ml.metric_learning.fit_data import FitData
from ml.metric_learning.hinge.embedder import HingeEmbedder
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.metric_learning.pairs import PairSet, scale_to_distance
from ml.options import option


@dataclass
class Cpmtml(HingeEmbedder):
    """d_t^2 = |L_0 u|^2 + |L_t u|^2 for each task t, L_0 shared; the first task is the main one, the others help it.

    embed(rows, task) gives [L_0 x; L_t x], 2d numbers, so that squared Euclidean distance is d_t^2.
    """

    auxiliary_pairs: int = option(100_000, "pairs drawn for each task but the first", low=1, unit="pairs")
    coupling: float = option(
        0.5, "gamma = eta_0 / eta: the rate of the shared projection relative to that of each task's own", low=0, high=1
    )
    common: Literal["next", "first"] = option(
        "next",
        "where L_0 starts: next: from the d whitened components after those of L_1; first: from those of L_1, as in "
        "the paper, so half of the 2d numbers repeat the other half until the tasks separate them",
    )
    learns_all_tasks: ClassVar[bool] = True

    @property
    def _further_pairs(self) -> int:
        return self.auxiliary_pairs

    def _make_start(self, data: FitData, pair_sets: list[PairSet]) -> Projections:
        rows, tasks, half = data.coordinates, data.tasks, self.distance / 2
        common, first = self._split_components(self._sample(data, tasks[0]))
        starts = [first, *(self._fit_components(self._sample(data, task), self.dim) for task in tasks[1:])]
        own = [scale_to_distance(start, rows, pairs, half) for start, pairs in zip(starts, pair_sets, strict=True)]
        return Projections(scale_to_distance(common, rows, pair_sets[0], half), own, [self.distance] * len(tasks))

    def _restore(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        return Projections(stacks[0][: self.dim], [stack[self.dim :] for stack in stacks], bias)

    def _make_rates(self, eta: float) -> Rates:
        return replace(super()._make_rates(eta), common=self.coupling * eta)

    def limit_dim(self, width: int) -> int:
        return width // 2 if self.common == "next" else width

    @property
    def _start_axes(self) -> int:
        return 2 * self.dim if self.common == "next" else self.dim

    def _split_components(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return L_0 and L_1 before they are scaled, (d, D) each."""
        axes = self._fit_components(rows, self._start_axes)
        return axes[-self.dim :].clone(), axes[: self.dim].clone()
