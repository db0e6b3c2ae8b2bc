"""The maps that are learned from pairs, with the gradient of each by its parameters."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ml.types import Ids


class Linear:
    """z = L x, pulled towards zero (shrink) and towards where it started (stay).

    Its regulariser is shrink |L|^2 + stay |L - L_start|^2, of squared Frobenius norms. projection: (d, r).
    """

    def __init__(self, projection: Tensor, shrink: float = 0.0, stay: float = 0.0) -> None:
        self.projection, self.shrink, self.stay = projection, shrink, stay
        self.home = projection.clone()
        self.parameters, self.sizes = [projection], [_size(projection)]

    def project(self, rows: Tensor, faces: Ids) -> Tensor:
        return rows @ self.projection.T

    def gradients(self, rows: Tensor, faces: Ids, by_z: Tensor) -> list[Tensor]:
        pulls = 2 * (self.shrink * self.projection + self.stay * (self.projection - self.home))
        return [torch.addmm(pulls, by_z.T, rows)]


class Local:
    """z = sum_s q_s ((C + D_s) x + b_s): CLML with each local map as a common part and a deviation (003, equation 3).

    With L_s = C + D_s, its regulariser is the mean over s of shrink (|L_s|^2 + |b_s|^2), the paper's norm made free
    of k, plus pull |L_s - their mean|^2 and anchor |b_s|^2. A face meets only the maps whose q_s is above zero.
    projection: (d, r), the global map that all of them start from; q: (N, k), its rows sum to 1.
    """

    def __init__(self, projection: Tensor, q: Tensor, shrink: float, pull: float, anchor: float, reach: float) -> None:
        k, d = q.shape[1], len(projection)
        self.q, self.shrink, self.pull, self.anchor = q, shrink, pull, anchor
        self.common = projection.clone()
        self.deviations = projection.new_zeros(k, *projection.shape)
        self.offsets = projection.new_zeros(k, d)
        self.parameters = [self.common, self.deviations, self.offsets]
        self.sizes = [_size(projection), _size(projection), reach]

    @property
    def maps(self) -> Tensor:
        """L_s: (k, d, r)."""
        return self.common + self.deviations

    def project(self, rows: Tensor, faces: Ids) -> Tensor:
        q = self._q(faces)
        z = torch.addmm(q @ self.offsets, rows, self.common.T)
        for s, mine in members(q):
            z.index_add_(0, mine, q[mine, s, None] * (rows[mine] @ self.deviations[s].T))
        return z

    def gradients(self, rows: Tensor, faces: Ids, by_z: Tensor) -> list[Tensor]:
        q, k = self._q(faces), len(self.offsets)
        mean = self.common + self.deviations.mean(0)
        apart = (2 / k) * ((self.shrink + self.pull) * self.deviations)
        apart += (2 / k) * (self.shrink * self.common - self.pull * (mean - self.common))
        for s, mine in members(q):
            apart[s].addmm_((q[mine, s, None] * by_z[mine]).T, rows[mine])
        offsets = torch.addmm((2 / k) * (self.shrink + self.anchor) * self.offsets, q.T, by_z)
        return [torch.addmm(2 * self.shrink * mean, by_z.T, rows), apart, offsets]

    def _q(self, faces: Ids) -> Tensor:
        return self.q[torch.from_numpy(faces).to(self.q.device)]


def members(q: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each component that any row belongs to, with those rows. q: (N, k), sparse."""
    for s in torch.nonzero(q.sum(0)).flatten().tolist():
        yield s, torch.nonzero(q[:, s]).flatten()


def _size(of: Tensor) -> float:
    """The root mean square of its numbers."""
    return float(of.square().mean().sqrt())
