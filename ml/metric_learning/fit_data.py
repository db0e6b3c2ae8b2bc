"""What a fit of maps learns from, in one place."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ml.embedders.base import TaskData
from ml.metric_learning.batches import Batches
from ml.metric_learning.subspace import Space, calibrated
from ml.types import Ids


@dataclass(eq=False)
class Lesson:
    """What a fit learns from. coordinates: (N, r), all rows in the space."""

    task: TaskData
    held: TaskData
    space: Space
    coordinates: Tensor
    batches: Batches

    def of(self, faces: Ids) -> Tensor:
        """The coordinates of these rows."""
        return self.coordinates[torch.from_numpy(faces).to(self.coordinates.device)]

    def scaled(self, projection: Tensor) -> tuple[Tensor, float]:
        """The map at the scale, and b, where the loss of a batch is least."""
        batch = self.batches.draw(projection.device, projection.dtype)
        scale, bias = calibrated(self.of(batch.faces) @ projection.T, batch)
        return projection * scale**0.5, bias

    def radius(self, projection: Tensor, share: float) -> tuple[float, float]:
        """So much of the length of z, and b, at which the loss of a batch is least where all z have one length."""
        batch = self.batches.draw(projection.device, projection.dtype)
        scale, bias = calibrated(normalize(self.of(batch.faces) @ projection.T), batch)
        return share * scale**0.5, share**2 * bias

    @property
    def spread(self) -> float:
        """The descriptors' variance, all coordinates together: the scale that pulls are measured in."""
        return float(self.of(self.task.faces).square().sum(1).mean())
