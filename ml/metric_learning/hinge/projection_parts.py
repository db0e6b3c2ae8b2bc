"""What a task shares with other tasks, and what it has of its own."""

from dataclasses import dataclass

from ml.types import Rows


@dataclass(frozen=True, eq=False)
class ProjectionParts:
    """The two projections of a task of a method that learns several tasks.

    common: (d0, D), which all tasks share, or (0, D); own: (d1, D), of this task alone, or (0, D)
    is_sum: whether the squared distance is the sum of those by both parts, so that an embedding consists of the
        common part, d0 numbers, and the own part, d1 numbers. If not, `own` is the whole projection of the task, a
        transformation of the common one, which is that of the first task.
    """

    common: Rows
    own: Rows
    is_sum: bool = True
