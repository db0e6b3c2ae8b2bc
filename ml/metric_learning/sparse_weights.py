"""Sparse weights of given directions, learned from triplets (Shi, Bellet, Sha 2014, equations 2 and 4)."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ml.embedders.base import Progress
from ml.metric_learning.held_out_score import Score
from ml.metric_learning.tensors import as_tensor
from ml.metric_learning.training_loop import TrainingLoop, TrainingOutcome
from ml.metric_learning.triplets import TripletBatches

EVALUATIONS = 20


@dataclass(eq=False)
class SparseWeights:
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
        """Take one step and return the mean hinge before it. p: (N, bases), b . x of each face; triplets: (T, 4)"""
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

    def transform(self, p: Tensor, faces: Tensor | None = None) -> Tensor:
        """Return z of these faces, or of all: (n, bases)."""
        q = self.q if faces is None else self.q[faces]
        return (p if faces is None else p[faces]) * (q @ self.scales)

    def gradient(self, p: Tensor, triplets: Tensor) -> tuple[float, Tensor]:
        """Return the mean hinge, and its gradient by the scales."""
        faces, index = torch.unique(triplets, return_inverse=True)
        z = self.transform(p, faces)
        i, j, k, l = index.T
        positives, negatives = z[i] - z[j], z[k] - z[l]
        hinge = (1 + positives.square().sum(1) - negatives.square().sum(1)).clamp_min(0)
        force = 2 * (hinge > 0).to(p)[:, None] / len(triplets)
        by_z = torch.zeros_like(z)
        for ends, push in ((i, positives), (j, -positives), (k, -negatives), (l, negatives)):
            by_z.index_add_(0, ends, force * push)
        return float(hinge.mean()), self.q[faces].T @ (by_z * p[faces])

    def step(self, p: Tensor, triplets: Tensor, rate: float) -> float:
        """Take one step and return the mean hinge before it. p: (N, bases); triplets: (T, 4)"""
        hinge, gradient = self.gradient(p, triplets)
        moved = (self.scales - rate * gradient).clamp_min(0)
        size = moved.norm(dim=0).clamp_min(torch.finfo(moved.dtype).tiny)
        self.scales = moved * (1 - rate * self.sparsity / size).clamp_min(0)
        return hinge


@dataclass(eq=False)
class WeightLearner:
    """Steps the weights of the global form, and keeps the best. p: (N, bases); batch: triplets."""

    weights: SparseWeights
    p: Tensor
    batches: TripletBatches
    batch: int
    best: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.best = self.weights.w

    def step(self, step: int) -> float:
        """Learn from one batch. See `BatchLearner.step`; the loss is () or (fits,)."""
        return self.weights.step(self.p, as_tensor(self.batches.draw(self.batch), self.p.device))

    def keep(self, improved: Tensor) -> None:
        """Keep the weights of these (fits,) as the best so far. See `BatchLearner.keep`."""
        self.best = self.weights.w

    def run(self, steps: int, progress: Progress, score: Score | None) -> TrainingOutcome:
        """Run all steps. score: returns the score of the current weights; None if nobody is held out"""
        return TrainingLoop(steps, EVALUATIONS).run(self, progress, score)


@dataclass(eq=False)
class LocalWeightLearner:
    """Steps the scales of the local form at a rate that falls to zero.

    rate: the step for a component that holds all faces: of k, each sees a k-th of a batch and steps k times as far
    """

    local: LocalWeights
    p: Tensor
    batches: TripletBatches
    batch: int
    rate: float
    steps: int

    def step(self, step: int) -> float:
        """Learn from one batch. See `BatchLearner.step`; the loss is () or (fits,)."""
        pace = self.rate * len(self.local.scales) * (1 - (step - 1) / self.steps)
        return self.local.step(self.p, as_tensor(self.batches.draw(self.batch), self.p.device), pace)

    def keep(self, improved: Tensor) -> None:
        """Do nothing: the last scales are kept, and the local form holds them. improved: (fits,)"""

    def run(self, progress: Progress) -> TrainingOutcome:
        """Learn to the end and return the outcome."""
        return TrainingLoop(self.steps, loss_window=1).run(self, progress)
