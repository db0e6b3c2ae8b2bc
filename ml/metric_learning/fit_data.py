"""What a fit learns from: the rows in the coordinates of a subspace, the tasks, and the people who are held out."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.embedders.base import TaskData
from ml.metric_learning.held_out_score import Score, make_score
from ml.metric_learning.subspace import Subspace
from ml.types import Ids


@dataclass(frozen=True, eq=False)
class FitData:
    """coordinates: (N, r), all rows of the training set in the subspace

    tasks: without the people held out; the first is the main one
    held_out: the people of the main task who are held out; None if nobody is
    """

    coordinates: Tensor
    subspace: Subspace
    tasks: tuple[TaskData, ...]
    held_out: TaskData | None = None

    @property
    def task(self) -> TaskData:
        return self.tasks[0]

    def select(self, faces: Ids) -> Tensor:
        """The coordinates of these rows, (n, r)."""
        return self.coordinates[torch.from_numpy(faces).to(self.coordinates.device)]

    @property
    def known(self) -> Tensor:
        """The coordinates of the main task's faces, (n, r)."""
        return self.select(self.task.faces)

    @property
    def mean_squared_norm(self) -> float:
        """The total variance of the main task's faces about the subspace's origin: the unit of regularisers."""
        return float(self.known.square().sum(1).mean())

    @property
    def mean_squared_distance(self) -> float:
        """Between two faces of the main task."""
        return max(2 * float(self.known.var(0, correction=0).sum()), 1e-12)

    def make_score(self, embed: Callable[[Ids], Tensor]) -> Score | None:
        """The score of a map on the people held out; None if nobody is. embed: (n,) indexes of rows -> (n, d)."""
        return make_score(embed, self.held_out)
