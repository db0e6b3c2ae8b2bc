"""stML: one projection and one bias from pairs, by the hinge (Simonyan et al. 2013; the baseline of 002)."""

from dataclasses import dataclass, replace

from ml.embedders._hinge import Projections
from ml.embedders._hinged import Hinged, Lesson, scaled
from ml.embedders.base import Progress, TrainingSet


@dataclass
class Stml(Hinged):
    """z = L x, with sum [1 - y (b - |z_i - z_j|^2)]_+ as small as it gets: CP-mtML without a common projection.

    Learns the first task alone. d numbers are stored for a face.
    """

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        super()._fit(replace(data, tasks=data.tasks[:1]), progress)

    def _learn(self, lesson: Lesson) -> None:
        rows, task = lesson.rows, lesson.tasks[0]
        self.tasks, pool = (task.task,), self._pool(task, self.pairs, 0)
        start = scaled(self._components(self._some(rows, task), self.dim), rows, pool, self.distance)
        self._descend(lesson, [pool], Projections(None, [start], [self.distance]))
