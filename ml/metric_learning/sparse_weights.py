"""Sparse weights of given directions, learned from triplets (Shi, Bellet, Sha 2014, equations 2 and 4)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ml.embedders.base import Progress

LOOKS = 20


@dataclass(eq=False)
class Weights:
    """w >= 0 of d_w^2 = sum_b w_b (b . u)^2, with mean [1 + d_w^2(i, j) - d_w^2(k, l)]_+ + sparsity |w|_1 small.

    By regularised dual averaging (Xiao 2010): after t batches w_b = pace sqrt(t) [-(mean gradient_b + sparsity)]_+,
    so a base whose gradient is never below -sparsity has no weight at all.
    """

    w: Tensor
    sparsity: float
    pace: float
    steps: int = 0
    mean: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.mean = torch.zeros_like(self.w)

    def step(self, p: Tensor, triplets: Tensor) -> float:
        """p: (N, bases), b . x of each face; triplets: (T, 4). Returns the mean hinge before the step."""
        i, j, k, l = triplets.T
        change = (p[i] - p[j]).square_().sub_((p[k] - p[l]).square_())
        hinge = (1 + change @ self.w).clamp_min(0)
        gradient = (hinge > 0).to(p) @ change / len(triplets)
        self.steps += 1
        self.mean += (gradient - self.mean) / self.steps
        self.w = self.pace * self.steps**0.5 * (-(self.mean + self.sparsity)).clamp_min(0)
        return float(hinge.mean())


@dataclass(eq=False)
class LocalWeights:
    """scales (k, bases) >= 0: face x has the scale s_b(x) = sum_c q_c(x) scales_cb along base b, its own weights s_b^2.

    z_b = s_b(x) b . x, and mean [1 + |z_i - z_j|^2 - |z_k - z_l|^2]_+ + sparsity sum_b |scales_b|_2 is made small by
    proximal gradient steps: a base that no part of the faces needs loses all its scales at once. q: (N, k).
    """

    scales: Tensor
    q: Tensor
    sparsity: float

    def placed(self, p: Tensor, faces: Tensor | None = None) -> Tensor:
        """z: (n, bases) of these faces, or of all."""
        q = self.q if faces is None else self.q[faces]
        return (p if faces is None else p[faces]) * (q @ self.scales)

    def gradient(self, p: Tensor, triplets: Tensor) -> tuple[float, Tensor]:
        """The mean hinge, and its gradient by the scales."""
        faces, at = torch.unique(triplets, return_inverse=True)
        z = self.placed(p, faces)
        i, j, k, l = at.T
        mates, foes = z[i] - z[j], z[k] - z[l]
        hinge = (1 + mates.square().sum(1) - foes.square().sum(1)).clamp_min(0)
        force = 2 * (hinge > 0).to(p)[:, None] / len(triplets)
        by_z = torch.zeros_like(z)
        for ends, push in ((i, mates), (j, -mates), (k, -foes), (l, foes)):
            by_z.index_add_(0, ends, force * push)
        return float(hinge.mean()), self.q[faces].T @ (by_z * p[faces])

    def step(self, p: Tensor, triplets: Tensor, rate: float) -> float:
        """p: (N, bases); triplets: (T, 4). Returns the mean hinge before the step."""
        hinge, gradient = self.gradient(p, triplets)
        moved = (self.scales - rate * gradient).clamp_min(0)
        size = moved.norm(dim=0).clamp_min(torch.finfo(moved.dtype).tiny)
        self.scales = moved * (1 - rate * self.sparsity / size).clamp_min(0)
        return hinge


def weighed(
    weights: Weights,
    p: Tensor,
    draw: Callable[[], Tensor],
    steps: int,
    progress: Progress,
    look: Callable[[], float] | None,
) -> tuple[Tensor, dict[str, Any]]:
    """w after `steps` batches of what `draw` gives, or after as many as `look` liked best; and notes of it."""
    found, notes, loss = weights.w, dict[str, Any](), float("nan")
    for step in range(1, steps + 1):
        now = weights.step(p, draw())
        loss = now if step == 1 else loss + (now - loss) / min(step, 50)
        told = {"loss": loss}
        if look and (step % max(1, steps // LOOKS) == 0 or step == steps):
            told["held_out"] = look()
            if not notes or told["held_out"] > notes["held_out"]:
                found, notes = weights.w, {"steps": step, **told}
        if step % max(1, steps // 100) == 0 or step == steps:
            progress(step, steps, told)
    return (found, notes) if look else (weights.w, {"steps": steps, "loss": loss, "held_out": None})


def localised(
    local: LocalWeights, p: Tensor, draw: Callable[[], Tensor], steps: int, rate: float, progress: Progress
) -> Tensor:
    """The scales after so many batches, the rate falling to zero over them.

    rate: the step for a component to which all faces belong: of k, each sees a k-th of a batch and steps k times as far
    """
    pace = rate * len(local.scales)
    for step in range(1, steps + 1):
        loss = local.step(p, draw(), pace * (1 - (step - 1) / steps))
        if step % max(1, steps // 100) == 0 or step == steps:
            progress(step, steps, {"loss": loss})
    return local.scales
