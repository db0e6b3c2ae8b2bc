"""utML: one projection for the pairs of all tasks together, a baseline of 002 (section 4.2)."""

from dataclasses import dataclass, replace

from torch import Tensor

from ml.metric_learning.hinge.embedder import Lesson
from ml.metric_learning.hinge.projections import Projections, Rates
from ml.metric_learning.hinge.tasks import ManyTasks
from ml.metric_learning.pairs import Pool, scaled
from ml.types import Rows


@dataclass
class Utml(ManyTasks):
    """z = L x for every task t, with sum_t sum [1 - y (b_t - |z_i - z_j|^2)]_+ as small as it gets.

    This is CP-mtML without any L_t: tasks take turns at one projection, each with a bias of its own, for one task's
    "near" is not another's. d numbers are stored for a face, the same for all tasks. The first task is the main one:
    the start is its WPCA, and people of it judge how long to learn.
    """

    def _anew(self, lesson: Lesson, pools: list[Pool]) -> Projections:
        rows, tasks = lesson.rows, lesson.tasks
        start = scaled(self._components(self._some(rows, tasks[0]), self.dim), rows, pools[0], self.distance)
        return self._again([start] * len(tasks), [self.distance] * len(tasks))

    def _again(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        return Projections(stacks[0], [stack[:0] for stack in stacks], bias)

    def _learn(self, lesson: Lesson) -> None:
        super()._learn(lesson)
        for name in ("projections", "offsets"):
            self.learned[name] = self.learned[name][:1]

    def _rates(self, eta: float) -> Rates:
        return replace(super()._rates(eta), common=eta)

    def _map(self, task: str) -> tuple[Rows, Rows]:
        return self.learned["projections"][0], self.learned["offsets"][0]
