"""Projections learned from pairs: Algorithm 1 of CP-mtML (002), with batches of pairs.

A pair (i, j) with sign y violates its constraint where y (b_t - d_t^2) < 1, with d_t^2 = |L_0 u|^2 + |L_t u|^2 and
u = x_i - x_j. Then L_0 -= eta_0 y L_0 u u^T, L_t -= eta y L_t u u^T, b_t += 0.1 eta y: half the gradient of the
hinge, as printed.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from ml.metric_learning.hinge.losses import HingeLoss, PairLoss


@dataclass(frozen=True)
class Rates:
    """own: eta; common: eta_0 = gamma eta; bias: the step of each b."""

    own: float
    common: float
    bias: float

    def scale(self, factor: float) -> "Rates":
        """Return all rates times a factor."""
        return Rates(factor * self.own, factor * self.common, factor * self.bias)


@dataclass(eq=False)
class Projections:
    """common: (d, D) L_0, or None for a single task; bias: b_1 ... b_T

    own: L_1 ... L_T, each (d, D), or (0, D) if a task has nothing of its own
    """

    common: Tensor | None
    own: list[Tensor]
    bias: list[float]
    loss: PairLoss = field(default_factory=HingeLoss)
    _scratch: Tensor | None = None

    def stack(self, task: int) -> Tensor:
        """[L_0; L_t], by which squared distances between projections are d_t^2."""
        return self.own[task] if self.common is None else torch.cat([self.common, self.own[task]])

    def clone(self) -> Self:
        """Return a copy of all projections."""
        common = None if self.common is None else self.common.clone()
        return replace(self, common=common, own=[p.clone() for p in self.own], bias=list(self.bias), _scratch=None)

    def move_towards(self, other: Self, pace: float) -> None:
        """Move by a share of the way towards other projections."""
        pairs = zip(self._tensors, other._tensors, strict=True)
        for here, there in pairs:
            here.lerp_(there, pace)
        self.bias = [a + pace * (b - a) for a, b in zip(self.bias, other.bias, strict=True)]

    @property
    def is_finite(self) -> bool:
        """Whether no number is infinite or NaN."""
        return all(bool(torch.isfinite(p).all()) for p in self._tensors)

    @property
    def _tensors(self) -> list[Tensor]:
        return self.own if self.common is None else [self.common, *self.own]

    def step(self, task: int, rows: Tensor, pairs: Tensor, sign: Tensor, weight: Tensor, rates: Rates) -> float:
        """Update by a batch of one task's pairs, and return the mean loss. A batch of one is a step of Algorithm 1.

        All gradients are computed with the projections before the update.
        rows: (N, D); pairs: (B, 2); sign: (B,) +1 or -1; weight: (B,)
        """
        u, spare = self._subtract(rows, pairs)
        z = u @ self.stack(task).T
        loss, slope = self.loss(sign * (self.bias[task] - z.square().sum(1)))
        force = sign * weight * slope
        violating = force.nonzero()[:, 0]
        if len(violating):
            pull = force[violating, None] * z[violating]
            differences = torch.index_select(u, 0, violating, out=spare[: len(violating)])
            self._descend(task, pull, differences, rates)
            self.bias[task] += rates.bias * float(force.sum())
        return float((weight * loss).mean())

    def _subtract(self, rows: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Return u of each pair, (B, D), and scratch memory of the same size, which is reused for speed."""
        if self._scratch is None or self._scratch.shape[1] < len(pairs):
            self._scratch = torch.empty(2, len(pairs), rows.shape[1], dtype=rows.dtype, device=rows.device)
        first, second = self._scratch[:, : len(pairs)]
        torch.index_select(rows, 0, pairs[:, 0], out=first)
        torch.index_select(rows, 0, pairs[:, 1], out=second)
        return first.sub_(second), second

    def _descend(self, task: int, pull: Tensor, u: Tensor, rates: Rates) -> None:
        """pull: (B, d) force times z; u: (B, D)."""
        own = pull[:, pull.shape[1] - len(self.own[task]) :]
        if self.common is not None:
            self.common.addmm_(pull[:, : len(self.common)].T, u, alpha=-rates.common)
        self.own[task].addmm_(own.T, u, alpha=-rates.own)
