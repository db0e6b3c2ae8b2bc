"""Sub-SML's convex program (000, equations 21 to 23; Cao, Ying and Li 2013), solved to a duality gap.

f = x^T G y - (x - y)^T M (x - y). The sum of w [1 - r f]_+ over pairs plus pull / 2 (|G - I|^2 + |M - I|^2), G and M
positive semidefinite, is least where its dual is greatest: over a force a in [0, w] for each pair, with
G = psd(I + sum a r sym(x y^T) / pull), M = psd(I - sum a r u u^T / pull), u = x - y.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ml.embedders.base import Progress

ROUNDS = 20
"""Power iterations by which the steepest curve of the dual is found."""


@dataclass(frozen=True, eq=False)
class Solution:
    """alike: G, apart: M, (r, r) each; loss: what they reach; gap: how far that is above the least at most, as a share
    of it."""

    alike: Tensor
    apart: Tensor
    steps: int
    loss: float
    gap: float


@dataclass(eq=False)
class Program:
    """x, y: (P, r); sign: (P,) +1 or -1; weight: (P,), w, which sum to 1; pull: towards the identity."""

    x: Tensor
    y: Tensor
    sign: Tensor
    weight: Tensor
    pull: float
    u: Tensor = field(init=False)
    eye: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.u = self.x - self.y
        self.eye = torch.eye(self.x.shape[1], dtype=self.x.dtype, device=self.x.device)

    def solved(self, steps: int, tolerance: float, progress: Progress) -> Solution:
        """Nesterov's method on the dual, begun anew where it turns back, until the gap is at most the tolerance."""
        force = ahead = self.weight / 2
        curve, pace = self._curve(), 1.0
        for step in range(1, steps + 1):
            alike, apart = self.matrices(ahead)
            hinge = 1 - self.sign * self.scores(alike, apart)
            loss = self.loss(alike, apart, hinge)
            gap = (loss - self.dual(ahead, alike, apart, hinge)) / max(abs(loss), 1e-12)
            done = gap <= tolerance or step == steps
            if done or step % max(1, steps // 100) == 0:
                progress(steps if done else step, steps, {"loss": loss, "gap": gap})
            if done:
                break
            moved = self._within(ahead + hinge / curve)
            if float(hinge @ (moved - force)) < 0:
                pace = 1.0
            later = (1 + (1 + 4 * pace**2) ** 0.5) / 2
            ahead = self._within(moved + (pace - 1) / later * (moved - force))
            force, pace = moved, later
        return Solution(alike, apart, step, loss, gap)

    def scores(self, alike: Tensor, apart: Tensor) -> Tensor:
        """f, (P,)."""
        return ((self.x @ alike) * self.y).sum(1) - ((self.u @ apart) * self.u).sum(1)

    def loss(self, alike: Tensor, apart: Tensor, hinge: Tensor) -> float:
        """Equation 23 with its hinge put back, averaged over the pairs, and what holds G and M to the identity."""
        return float(self.weight @ hinge.clamp_min(0)) + self._held(alike, apart)

    def dual(self, force: Tensor, alike: Tensor, apart: Tensor, hinge: Tensor) -> float:
        """What no G and M can fall below. alike, apart: those that the force makes."""
        return float(force @ hinge) + self._held(alike, apart)

    def matrices(self, force: Tensor) -> tuple[Tensor, Tensor]:
        """G and M that this force makes."""
        alike, apart = self._pulled(force)
        strength, turn = torch.linalg.eigh(self.eye + torch.stack([alike, -apart]) / self.pull)
        g, m = (turn * strength.clamp_min(0)[:, None]) @ turn.mT
        return g, m

    def _pulled(self, force: Tensor) -> tuple[Tensor, Tensor]:
        """sum a r sym(x y^T) and sum a r u u^T."""
        c = (force * self.sign)[:, None]
        outer = (c * self.x).T @ self.y
        return (outer + outer.T) / 2, (c * self.u).T @ self.u

    def _held(self, alike: Tensor, apart: Tensor) -> float:
        return self.pull / 2 * float((alike - self.eye).square().sum() + (apart - self.eye).square().sum())

    def _within(self, force: Tensor) -> Tensor:
        return force.clamp_min(0).minimum(self.weight)

    def _curve(self) -> float:
        """The most that the dual's gradient changes, over how far the force moves."""
        force, size = torch.ones_like(self.weight), 1.0
        for _ in range(ROUNDS):
            alike, apart = self._pulled(force / force.norm())
            force = self.sign * self.scores(alike, -apart)
            size = float(force.norm())
        return 1.05 * size / self.pull
