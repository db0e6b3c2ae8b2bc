"""Hinge learning of projections from pairs: Algorithm 1 of CP-mtML (002), many pairs at a step.

A pair (i, j) with sign y breaks its constraint where y (b_t - d_t^2) < 1, d_t^2 = |L_0 u|^2 + |L_t u|^2, u = x_i - x_j.
Then L_0 -= eta_0 y L_0 u u^T, L_t -= eta y L_t u u^T, b_t += 0.1 eta y: half the gradient of the hinge, as printed.
Other learners of pairs put another loss, or another make of the projections, in their place (`_soft.py`, `_turned.py`).
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rates:
    """own: eta; common: eta_0 = gamma eta; bias: the step of each b."""

    own: float
    common: float
    bias: float

    def times(self, factor: float) -> "Rates":
        return Rates(factor * self.own, factor * self.common, factor * self.bias)


@dataclass(eq=False)
class Projections:
    """common: (d, D) L_0, or None for single-task learning; bias: b_1 ... b_T.

    own: L_1 ... L_T, each (d, D), or (0, D) where a task has nothing of its own
    """

    common: Tensor | None
    own: list[Tensor]
    bias: list[float]
    _scratch: Tensor | None = None

    def stacked(self, task: int) -> Tensor:
        """[L_0; L_t], so that squared distances between projections are d_t^2."""
        return self.own[task] if self.common is None else torch.cat([self.common, self.own[task]])

    def clone(self) -> Self:
        common = None if self.common is None else self.common.clone()
        return replace(self, common=common, own=[p.clone() for p in self.own], bias=list(self.bias), _scratch=None)

    def follow(self, other: Self, pace: float) -> None:
        """Moves a share of the way to another's."""
        mine, theirs = ([p.common, *p.own] if p.common is not None else p.own for p in (self, other))
        for here, there in zip(mine, theirs, strict=True):
            here.lerp_(there, pace)
        self.bias = [a + pace * (b - a) for a, b in zip(self.bias, other.bias, strict=True)]

    def step(self, task: int, rows: Tensor, pairs: Tensor, sign: Tensor, weight: Tensor, rates: Rates) -> float:
        """One update by a batch of one task's pairs; a batch of one is a step of Algorithm 1 to the letter.

        All pairs of a batch see the projections as they were before it. A pair's gradient is of rank one, so both
        products are with its u alone. rows: (N, D); pairs: (B, 2); sign: (B,) +1 or -1; weight: (B,). Returns the
        mean loss.
        """
        u, spare = self._differences(rows, pairs)
        z = u @ self.stacked(task).T
        loss, slope = self._loss(sign * (self.bias[task] - z.square().sum(1)))
        force = sign * weight * slope
        broken = force.nonzero()[:, 0]
        if len(broken):
            pull = force[broken, None] * z[broken]
            moved = torch.index_select(u, 0, broken, out=spare[: len(broken)])
            self._descend(task, pull, moved, rates)
            self.bias[task] += rates.bias * float(force.sum())
        return float((weight * loss).mean())

    def _loss(self, margin: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each pair at its margin y (b_t - d_t^2), and how fast it falls there. (B,) each."""
        hinge = (1 - margin).clamp_min(0)
        return hinge, (hinge > 0).to(margin)

    def _differences(self, rows: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D) u of each pair, and room for as much again: fresh memory at each step is dear."""
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
