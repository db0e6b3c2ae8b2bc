"""The data of a fit, and the options of every fit that descends from a start."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ml.embedders.base import TaskData
from ml.metric_learning.held_out_score import Score, make_score
from ml.metric_learning.subspace import Subspace
from ml.options import option
from ml.types import Ids


@dataclass(frozen=True)
class FitOptions:
    """How long a fit descends, whom it holds out, and how firmly it keeps to its start."""

    steps: int = option(300, "largest number of batches, over all tasks", low=1, unit="steps")
    held_out: float = option(
        0.15,
        "share of the first task's people held out to choose the best number of steps; with too few people, all steps "
        "are taken",
        low=0,
        high=1,
    )
    min_pairs: int = option(
        10, "smallest number of positive pairs, and of negative pairs, that a fit accepts for each task",
        low=0, unit="pairs", formerly="needed",
    )  # fmt: skip
    proximal_weight: float = option(
        0.0,
        "weight of the pull towards the model from which the fit starts, times prior / n for n matched faces",
        low=0,
        formerly="stay",
    )
    prior: float = option(
        300.0,
        "number of labelled faces that weigh as much as two prior assumptions: that the start is right, and that a "
        "person varies as all faces do",
        low=0,
        unit="faces",
    )
    device: str = option("auto", "auto, cpu or cuda", server_only=True)


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
