"""The data of a fit: the rows in the coordinates of a subspace, the tasks, and the held-out people."""

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
    """The data of a fit.

    coordinates: (N, r), all rows of the training set in the subspace
    tasks: the tasks without the held-out people; the first is the main one
    held_out: the main task of the held-out people; None if nobody is held out
    """

    coordinates: Tensor
    subspace: Subspace
    tasks: tuple[TaskData, ...]
    held_out: TaskData | None = None

    @property
    def task(self) -> TaskData:
        return self.tasks[0]

    def select(self, faces: Ids) -> Tensor:
        """Return the (n, r) coordinates of (n,) rows."""
        return self.coordinates[torch.from_numpy(faces).to(self.coordinates.device)]

    @property
    def known(self) -> Tensor:
        """The (n, r) coordinates of the main task's faces."""
        return self.select(self.task.faces)

    @property
    def mean_squared_norm(self) -> float:
        """The total variance of the main task's faces about the subspace's origin: the unit of regularisers."""
        return float(self.known.square().sum(1).mean())

    @property
    def mean_squared_distance(self) -> float:
        """The mean squared distance between two faces of the main task."""
        return max(2 * float(self.known.var(0, correction=0).sum()), 1e-12)

    def make_score(self, embed: Callable[[Ids], Tensor]) -> Score | None:
        """Make a function that scores a map on the held-out people; None if nobody is held out.

        embed: maps (n,) indexes of rows to (n, d) embeddings
        """
        return make_score(embed, self.held_out)
