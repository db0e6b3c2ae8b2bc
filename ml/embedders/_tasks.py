"""Learners of pairs by how many tasks they learn: the first alone, or all of a training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ml.embedders._hinge import Projections
from ml.embedders._hinged import Hinged, Lesson
from ml.embedders._pools import Pool, scaled
from ml.embedders.base import Progress, TaskData, TrainingSet


@dataclass
class OneTask(Hinged):
    """Learns the first task alone."""

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        super()._fit(replace(data, tasks=data.tasks[:1]), progress)

    def _learn(self, lesson: Lesson) -> None:
        rows, task = lesson.rows, lesson.tasks[0]
        self.tasks, pool = (task.task,), self._pool(task, self.pairs, 0)
        start = scaled(self._components(self._some(rows, task), self.dim), rows, pool, self.distance)
        self._descend(lesson, [pool], self._projections(start))

    def _projections(self, start: Tensor) -> Projections:
        return Projections(None, [start], [self.distance])


@dataclass
class ManyTasks(Hinged):
    """auxiliary_pairs: budget of each task after the first."""

    auxiliary_pairs: int = 100_000

    def _pools(self, tasks: Sequence[TaskData]) -> list[Pool]:
        budgets = [self.pairs] + [self.auxiliary_pairs] * (len(tasks) - 1)
        return [self._pool(task, budget, t) for t, (task, budget) in enumerate(zip(tasks, budgets, strict=True))]
