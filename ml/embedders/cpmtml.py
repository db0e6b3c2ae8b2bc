"""CP-mtML: coupled projections for several tasks, from pairs (Bhattarai, Sharma, Jurie 2016, Algorithm 1)."""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from ml.metric_learning.hinge.embedder import Lesson
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.metric_learning.hinge.tasks import ManyTasks
from ml.metric_learning.pairs import Pool, scaled


@dataclass
class Cpmtml(ManyTasks):
    """d_t^2 = |L_0 u|^2 + |L_t u|^2 for each task t, L_0 shared; the first task is the main one, the others help it.

    embed(rows, task) gives [L_0 x; L_t x], 2d numbers, so that squared Euclidean distance is d_t^2.

    coupling: gamma = eta_0 / eta, how fast L_0 learns beside L_t, in 0..1
    common: where L_0 starts: "next", at the d whitened components after L_1's, or "first", at L_1 as printed, which
    leaves half of the 2d numbers to repeat the other half until the tasks have drawn them apart
    """

    coupling: float = 0.5
    common: Literal["next", "first"] = "next"

    def _anew(self, lesson: Lesson, pools: list[Pool]) -> Projections:
        rows, tasks, half = lesson.rows, lesson.tasks, self.distance / 2
        common, first = self._starts(self._some(rows, tasks[0]))
        starts = [first, *(self._components(self._some(rows, task), self.dim) for task in tasks[1:])]
        own = [scaled(start, rows, pool, half) for start, pool in zip(starts, pools, strict=True)]
        return Projections(scaled(common, rows, pools[0], half), own, [self.distance] * len(tasks))

    def _again(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        return Projections(stacks[0][: self.dim], [stack[self.dim :] for stack in stacks], bias)

    def _rates(self, eta: float) -> Rates:
        return replace(super()._rates(eta), common=self.coupling * eta)

    @property
    def _axes(self) -> int:
        return 2 * self.dim if self.common == "next" else self.dim

    def _starts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """L_0 and L_1 before they are scaled."""
        axes = self._components(rows, self._axes)
        return axes[-self.dim :].clone(), axes[: self.dim].clone()
