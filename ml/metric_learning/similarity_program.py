"""Sub-SML's convex program (000, equations 21 to 23; Cao, Ying and Li 2013), solved to a duality gap.

f = x^T G y - (x - y)^T M (x - y). The sum of w [1 - r f]_+ over pairs plus pull / 2 (|G - I|^2 + |M - I|^2), G and M
positive semidefinite, is least where its dual is greatest: over a force a in [0, w] for each pair, with
G = psd(I + sum a r sym(x y^T) / pull), M = psd(I - sum a r u u^T / pull), u = x - y.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ml.embedders.base import Progress
from ml.metric_learning.training_loop import PROGRESS_REPORTS, ReportSchedule

POWER_ITERATIONS = 20
"""Iterations by which the greatest curvature of the dual is found."""


@dataclass(frozen=True, eq=False)
class ProgramSolution:
    """similarity: G, distance: M, (r, r) each; loss: the value they reach; gap: how far it is above the minimum at
    most, as a share of it.
    """

    similarity: Tensor
    distance: Tensor
    steps: int
    loss: float
    gap: float


@dataclass(eq=False)
class SimilarityProgram:
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

    def solve(self, steps: int, tolerance: float, progress: Progress) -> ProgramSolution:
        """Solve by Nesterov's method on the dual, with restarts, until the gap is at most the tolerance."""
        force = ahead = self.weight / 2
        curvature, momentum = self._estimate_curvature(), 1.0
        schedule = ReportSchedule(max(1, steps // PROGRESS_REPORTS))
        for step in range(1, steps + 1):
            g, m = self.matrices(ahead)
            hinge = 1 - self.sign * self.scores(g, m)
            loss = self.loss(g, m, hinge)
            gap = (loss - self.dual(ahead, g, m, hinge)) / max(abs(loss), 1e-12)
            done = gap <= tolerance or step == steps
            if done or schedule.is_due(step):
                progress(steps if done else step, steps, {"loss": loss, "gap": gap})
            if done:
                break
            moved = self._clip(ahead + hinge / curvature)
            if float(hinge @ (moved - force)) < 0:
                momentum = 1.0
            following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = self._clip(moved + (momentum - 1) / following * (moved - force))
            force, momentum = moved, following
        return ProgramSolution(g, m, step, loss, gap)

    def scores(self, g: Tensor, m: Tensor) -> Tensor:
        """f, (P,)."""
        return ((self.x @ g) * self.y).sum(1) - ((self.u @ m) * self.u).sum(1)

    def loss(self, g: Tensor, m: Tensor, hinge: Tensor) -> float:
        """Compute equation 23 with its hinge, averaged over the pairs, plus the pull of G and M to the identity."""
        return float(self.weight @ hinge.clamp_min(0)) + self._regulariser(g, m)

    def dual(self, force: Tensor, g: Tensor, m: Tensor, hinge: Tensor) -> float:
        """Compute the dual: a lower bound of the loss for any G and M. g, m: the matrices of the force, (r, r)"""
        return float(force @ hinge) + self._regulariser(g, m)

    def matrices(self, force: Tensor) -> tuple[Tensor, Tensor]:
        """Return G and M of a force (P,)."""
        similar, different = self._sum_outer(force)
        strength, turn = torch.linalg.eigh(self.eye + torch.stack([similar, -different]) / self.pull)
        g, m = (turn * strength.clamp_min(0)[:, None]) @ turn.mT
        return g, m

    def _sum_outer(self, force: Tensor) -> tuple[Tensor, Tensor]:
        """sum a r sym(x y^T) and sum a r u u^T."""
        c = (force * self.sign)[:, None]
        outer = (c * self.x).T @ self.y
        return (outer + outer.T) / 2, (c * self.u).T @ self.u

    def _regulariser(self, g: Tensor, m: Tensor) -> float:
        return self.pull / 2 * float((g - self.eye).square().sum() + (m - self.eye).square().sum())

    def _clip(self, force: Tensor) -> Tensor:
        return force.clamp_min(0).minimum(self.weight)

    def _estimate_curvature(self) -> float:
        """An upper estimate of how fast the dual's gradient changes as the force moves."""
        force, size = torch.ones_like(self.weight), 1.0
        for _ in range(POWER_ITERATIONS):
            similar, different = self._sum_outer(force / force.norm())
            force = self.sign * self.scores(similar, -different)
            size = float(force.norm())
        return 1.05 * size / self.pull
