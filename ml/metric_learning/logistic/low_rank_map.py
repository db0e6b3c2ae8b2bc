"""The identity plus a low-rank correction, and the directions in which the correction starts."""

import torch
from torch import Tensor

from ml.metric_learning.logistic.loss import spherical_loss
from ml.metric_learning.logistic.trainer import LogisticTrainer
from ml.types import Ids

START_BATCHES = 8
"""Batches over which the gradient is averaged to find the start directions."""


class LowRankMap:
    """z = scale (x + U V x), with the regulariser proximal_weight |scale U V|^2 (squared Frobenius norm).

    The fit starts at U = 0, which changes nothing. directions: the initial V, (rank, r), orthonormal rows
    """

    def __init__(self, scale: float, directions: Tensor, proximal_weight: float) -> None:
        self.scale, self.proximal_weight = scale, proximal_weight
        self.left, self.right = torch.zeros_like(directions).T.contiguous(), directions.clone()
        self.parameters = [self.left, self.right]
        self.sizes = [directions.shape[1] ** -0.5] * 2

    @property
    def projection(self) -> Tensor:
        """The whole map scale (I + U V), (r, r)."""
        identity = torch.eye(len(self.left), dtype=self.left.dtype, device=self.left.device)
        return self.scale * (identity + self.left @ self.right)

    def project(self, rows: Tensor, faces: Ids) -> Tensor:
        """Map (B, r) rows to (B, r)."""
        return self.scale * torch.addmm(rows, rows @ self.right.T, self.left.T)

    def gradients(self, rows: Tensor, faces: Ids, by_z: Tensor) -> list[Tensor]:
        """Return the gradients by U (r, rank) and V (rank, r) from the gradient by z, (B, r)."""
        held = 2 * self.proximal_weight * self.scale**2
        by_left = self.scale * by_z.T @ (rows @ self.right.T) + held * self.left @ (self.right @ self.right.T)
        by_right = self.scale * (by_z @ self.left).T @ rows + held * (self.left.T @ self.left) @ self.right
        return [by_left, by_right]


def find_start_directions(trainer: LogisticTrainer, scale: float, bias: float, radius: float, rank: int) -> Tensor:
    """Return the directions along which a change of the identity lowers the loss most: (rank, r), orthonormal rows.

    These are the leading right singular vectors of the loss's gradient by the map, averaged over some batches.
    scale, bias, radius: those of the loss at the start
    """
    coordinates = trainer.data.coordinates
    gradient = coordinates.new_zeros(coordinates.shape[1], coordinates.shape[1])
    for _ in range(START_BATCHES):
        batch = trainer.batches.draw(coordinates.device, coordinates.dtype)
        rows = trainer.data.select(batch.faces)
        _, by_z, _ = spherical_loss(scale * rows, torch.tensor(bias).to(rows), batch, radius)
        gradient.addmm_(by_z.T, rows)
    directions: Tensor = torch.linalg.svd(gradient, full_matrices=False)[2][:rank]
    return directions.contiguous()
