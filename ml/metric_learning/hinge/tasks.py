"""Learners of pairs by how many tasks they learn: the first alone, or all of a training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ml.embedders.base import Progress, TaskData, TrainingSet
from ml.metric_learning.hinge.embedder import Hinged, Lesson
from ml.metric_learning.hinge.projections import Projections
from ml.metric_learning.pairs import Pool, scaled


@dataclass
class OneTask(Hinged):
    """Learns the first task alone."""

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        self.tasks = self.tasks[:1]
        super()._fit(replace(data, tasks=data.tasks[:1]), progress)

    def _pools(self, tasks: Sequence[TaskData]) -> list[Pool]:
        return [self._pool(tasks[0], self.pairs, 0)]

    def _anew(self, lesson: Lesson, pools: list[Pool]) -> Projections:
        start = self._components(self._some(lesson.rows, lesson.tasks[0]), self.dim)
        return self._again([scaled(start, lesson.rows, pools[0], self.distance)], [self.distance])

    def _again(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        return Projections(None, stacks, bias)


@dataclass
class ManyTasks(Hinged):
    """auxiliary_pairs: budget of each task after the first."""

    auxiliary_pairs: int = 100_000

    def _pools(self, tasks: Sequence[TaskData]) -> list[Pool]:
        budgets = [self.pairs] + [self.auxiliary_pairs] * (len(tasks) - 1)
        return [self._pool(task, budget, t) for t, (task, budget) in enumerate(zip(tasks, budgets, strict=True))]
