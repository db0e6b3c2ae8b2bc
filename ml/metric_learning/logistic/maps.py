"""Maps that are learned from pairs, with the gradients by their parameters."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from ml.types import Ids


class LearnableMap(Protocol):
    """A map with parameters, and the gradient of its regularised loss by them."""

    parameters: list[Tensor]
    sizes: list[float]
    """The root mean square of each parameter: the rate of its steps is relative to it."""

    def project(self, rows: Tensor, faces: Ids) -> Tensor:
        """Map (B, r) rows to (B, d). faces: (B,) indexes of the rows"""

    def gradients(self, rows: Tensor, faces: Ids, by_z: Tensor) -> list[Tensor]:
        """Return the gradient by each parameter, regulariser included, from the gradient by z (B, d)."""


class LinearMap:
    """z = L x, with the regulariser shrink |L|^2 + proximal_weight |L - L_start|^2 (squared Frobenius norms).

    projection: the initial L, (d, r)
    """

    def __init__(self, projection: Tensor, shrink: float = 0.0, proximal_weight: float = 0.0) -> None:
        self.projection, self.shrink, self.proximal_weight = projection, shrink, proximal_weight
        self.start = projection.clone()
        self.parameters, self.sizes = [projection], [_root_mean_square(projection)]

    def project(self, rows: Tensor, faces: Ids) -> Tensor:
        """Map (B, D) rows to (B, d)."""
        return rows @ self.projection.T

    def gradients(self, rows: Tensor, faces: Ids, by_z: Tensor) -> list[Tensor]:
        """Return the gradient by the (d, r) projection from the gradient by z, (B, d)."""
        proximal = self.proximal_weight * (self.projection - self.start)
        return [torch.addmm(2 * (self.shrink * self.projection + proximal), by_z.T, rows)]


class LocalMaps:
    """z = sum_s q_s ((C + D_s) x + b_s): CLML with each local map L_s = C + D_s as a common part and a deviation.

    The regulariser is the mean over s of shrink (|L_s|^2 + |b_s|^2), the paper's norm made independent of k, plus
    pull |L_s - mean of all|^2 and anchor |b_s|^2. For each face, only the maps with q_s above zero are computed.
    projection: (d, r), the global map from which all local maps start; q: (N, k), whose rows sum to 1
    offset_size: the size to which the step of the offsets is relative
    Source: 003, equation 3.
    """

    def __init__(
        self, projection: Tensor, q: Tensor, shrink: float, pull: float, anchor: float, offset_size: float
    ) -> None:
        k, d = q.shape[1], len(projection)
        self.q, self.shrink, self.pull, self.anchor = q, shrink, pull, anchor
        self.common = projection.clone()
        self.deviations = projection.new_zeros(k, *projection.shape)
        self.offsets = projection.new_zeros(k, d)
        self.parameters = [self.common, self.deviations, self.offsets]
        size = _root_mean_square(projection)
        self.sizes = [size, size, offset_size]

    @property
    def maps(self) -> Tensor:
        """L_s: (k, d, r)."""
        return self.common + self.deviations

    def project(self, rows: Tensor, faces: Ids) -> Tensor:
        """Map (B, D) rows to (B, d)."""
        q = self._select_q(faces)
        z = torch.addmm(q @ self.offsets, rows, self.common.T)
        for s, members in iterate_members(q):
            z.index_add_(0, members, q[members, s, None] * (rows[members] @ self.deviations[s].T))
        return z

    def gradients(self, rows: Tensor, faces: Ids, by_z: Tensor) -> list[Tensor]:
        """Return the gradients by all parameters from the gradient by z, (B, d)."""
        q, k = self._select_q(faces), len(self.offsets)
        mean = self.common + self.deviations.mean(0)
        deviations = (2 / k) * ((self.shrink + self.pull) * self.deviations)
        deviations += (2 / k) * (self.shrink * self.common - self.pull * (mean - self.common))
        for s, members in iterate_members(q):
            deviations[s].addmm_((q[members, s, None] * by_z[members]).T, rows[members])
        offsets = torch.addmm((2 / k) * (self.shrink + self.anchor) * self.offsets, q.T, by_z)
        return [torch.addmm(2 * self.shrink * mean, by_z.T, rows), deviations, offsets]

    def _select_q(self, faces: Ids) -> Tensor:
        return self.q[torch.from_numpy(faces).to(self.q.device)]


def iterate_members(q: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Iterate over the components that have any row, with their rows. q: (N, k), sparse"""
    for s in torch.nonzero(q.sum(0)).flatten().tolist():
        yield s, torch.nonzero(q[:, s]).flatten()


def _root_mean_square(parameter: Tensor) -> float:
    return float(parameter.square().mean().sqrt())
