"""Train CoSiM's networks by Adam with Keras's decay and dropout; several fits are computed as one batched product."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ml.embedders.base import Progress
from ml.metric_learning.cosim.branches import Branches, compute_log_odds, draw_dropout_mask
from ml.metric_learning.held_out_score import compute_auc
from ml.metric_learning.pairs import PairCycle, PairSet
from ml.metric_learning.tensors import FusedAdam
from ml.metric_learning.training_loop import TrainingLoop, TrainingOutcome

EVALUATIONS = 30


@dataclass(frozen=True)
class DecaySchedule:
    """steps: minibatches of `batch` pairs; at minibatch t = 0, 1, ... Adam's step is rate / (1 + decay t), as in Keras

    dropped: share of the numbers that is dropped; proximal_weight: of a pull proximal_weight |W - W_start|^2
    """

    steps: int
    batch: int
    rate: float
    decay: float
    dropped: float
    proximal_weight: float = 0.0


class BranchLearner:
    """Steps F fits at once.

    x: (n, F, N, r), or (n, 1, N, r) if all fits share it; pair_sets: what each fit learns from; held_out: the pairs
    that score each, by AUC; None if nobody is held out
    shares: (m, F)
    """

    def __init__(
        self,
        model: Branches,
        x: Tensor,
        pair_sets: Sequence[PairSet],
        held_out: Sequence[PairSet] | None,
        shares: Tensor,
        schedule: DecaySchedule,
        seed: int,
    ) -> None:
        self.model, self.pair_sets, self.held_out, self.shares = model, pair_sets, held_out, shares
        self.schedule = schedule
        rng = np.random.default_rng((seed, 3))
        self.cycles = [PairCycle(len(pairs.sign), schedule.batch, rng) for pairs in pair_sets]
        self.generator = torch.Generator(x.device).manual_seed(seed)
        inputs = torch.arange(len(pair_sets), device=x.device) % x.shape[1]
        self.offset = (x.shape[2] * inputs)[:, None]
        self.flat = x.reshape(len(x), -1, x.shape[3])
        self.start = model.weights.clone() if schedule.proximal_weight else None
        self.best = [p.clone() for p in model.parameters]
        self.adam = FusedAdam(model.parameters)

    def step(self, step: int) -> Tensor:
        """Learn from one batch. See `BatchLearner.step`; the loss is (fits,) or ()."""
        rate = self.schedule.rate / (1 + self.schedule.decay * (step - 1))
        batch = [pairs.select(cycle.draw()) for pairs, cycle in zip(self.pair_sets, self.cycles, strict=True)]
        pairs, sign, weight = (torch.stack([getattr(b, name) for b in batch]) for name in ("pairs", "sign", "weight"))
        x = self._select(pairs, self.offset)
        if self.schedule.dropped:
            x *= draw_dropout_mask(x.shape, self.schedule.dropped, self.generator, x)
        mean = weight / weight.sum(1, keepdim=True).clamp_min(1e-12)
        loss, gradients = self.model.gradients(x, sign, mean, self.shares)
        if self.start is not None:
            gradients[0] += 2 * self.schedule.proximal_weight * (self.model.weights - self.start)
        self.adam.step(gradients, [rate] * len(gradients))
        return loss

    def keep(self, improved: Tensor) -> None:
        """Keep the parameters of these (fits,) as the best so far. See `BatchLearner.keep`."""
        for best, parameter in zip(self.best, self.model.parameters, strict=True):
            best[:, improved] = parameter[:, improved]

    def score(self) -> Tensor:
        """Return the AUC of the held-out pairs of each fit, (F,)."""
        assert self.held_out is not None, "pairs are held out"
        scores = []
        for f, pairs in enumerate(self.held_out):
            fit = Branches(self.model.weights[:, f : f + 1], self.model.bias[:, f : f + 1], self.model.summed)
            z = fit.logits(self._select(pairs.pairs[None], self.offset[f]))
            scores.append(compute_auc(compute_log_odds(z, self.shares[:, f : f + 1])[0], pairs.sign))
        return torch.tensor(scores, dtype=torch.float64)

    def _select(self, pairs: Tensor, offset: Tensor) -> Tensor:
        """Select the rows of (F, B, 2) pairs: (n, F, 2B, r), the first images and then the second ones."""
        ends = pairs.mT.flatten(1) + offset
        return self.flat.index_select(1, ends.flatten()).view(len(self.flat), *ends.shape, -1)


def descend(learner: BranchLearner, progress: Progress) -> TrainingOutcome:
    """Fit the model, which then has the best parameters of each fit."""
    loop = TrainingLoop(learner.schedule.steps, EVALUATIONS, evaluates_start=True, fits=len(learner.pair_sets))
    outcome = loop.run(learner, progress, None if learner.held_out is None else learner.score)
    learner.model.weights, learner.model.bias = learner.best
    return outcome
