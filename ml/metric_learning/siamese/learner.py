"""Train an embedding layer on fixed descriptors, by mined triplets and a pull towards the start."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ml.embedders.base import Progress
from ml.layers.base import Layer, optimisers
from ml.losses.triplet import Triplet
from ml.metric_learning.fit_data import FitData
from ml.metric_learning.siamese.mining_batches import MiningBatches
from ml.metric_learning.tensors import squared_distances
from ml.metric_learning.training_loop import TrainingLoop
from ml.mining.semihard import SemiHard
from ml.types import Ids

EVALUATIONS = 20


@dataclass(frozen=True)
class LayerSchedule:
    """The schedule of a layer's training.

    rate, scale_rate: steps of rSGD-M and of RMSProp, which fall to zero over the last half
    proximal_weight: weight of the pull of each squared distance to its initial value
    distance: median squared distance at the start, the unit of that pull
    """

    steps: int
    rate: float
    scale_rate: float
    momentum: float
    proximal_weight: float
    distance: float


@dataclass(frozen=True, eq=False)
class LayerFit:
    """A fitted layer. matrix: (r, p) after `steps` steps; loss: None without steps; held_out: None if nobody was."""

    matrix: Tensor
    steps: int
    loss: float | None
    held_out: float | None


class LayerLearner:
    """The loss is equation 12 plus proximal_weight * mean over the batch's pairs of (d2 - d2_start)^2 / distance^2,
    which a rotation of the map leaves unchanged.
    """

    def __init__(
        self,
        layer: Layer,
        data: FitData,
        batches: MiningBatches,
        miner: SemiHard,
        loss: Triplet,
        schedule: LayerSchedule,
        seed: int,
    ) -> None:
        self.layer, self.data, self.batches, self.miner, self.loss = layer, data, batches, miner, loss
        self.schedule = schedule
        self.start = data.coordinates @ layer.matrix.detach()
        self.best = self.matrix
        self.generator = torch.Generator().manual_seed(seed)
        self.optimisers = optimisers(layer, schedule.rate, schedule.momentum, schedule.scale_rate)
        self.groups = [group for optimiser in self.optimisers for group in optimiser.param_groups]
        self.full_rates = [group["lr"] for group in self.groups]

    @property
    def matrix(self) -> Tensor:
        return self.layer.matrix.detach().clone()

    def step(self, step: int) -> float:
        """Learn from one batch. See `BatchLearner.step`; the loss is () or (fits,)."""
        left = min(1.0, 2 * (1 - (step - 1) / self.schedule.steps))
        for group, rate in zip(self.groups, self.full_rates, strict=True):
            group["lr"] = rate * left
        batch = self.batches.draw(self.start.device)
        d2 = squared_distances(self.layer.embed(self.data.select(batch.faces)))
        preferred = batch.labelled_negatives if self.batches.label_count else None
        triplets = self.miner(
            d2.detach(), batch.positives, batch.negatives, self.generator, preferred, self.loss.margin
        )
        loss = self.loss(d2, triplets, batch.weigh(triplets))
        if self.schedule.proximal_weight:
            loss = loss + self.schedule.proximal_weight * self._measure_change(d2, batch.faces)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimiser in self.optimisers:
            optimiser.step()
        return float(loss.detach())

    def _measure_change(self, d2: Tensor, faces: Ids) -> Tensor:
        start = self.start[torch.from_numpy(faces).to(self.start.device)]
        return (d2 - squared_distances(start)).div(self.schedule.distance).square().mean()

    def keep(self, improved: Tensor) -> None:
        """Keep the parameters of these (fits,) as the best so far. See `BatchLearner.keep`."""
        self.best = self.matrix


def descend(learner: LayerLearner, unit: bool, progress: Progress) -> LayerFit:
    """Fit the layer. The start is kept unless the best matrix is better on held-out people than chance explains.

    unit: whether embeddings are divided by their norm before they are scored
    """
    start = learner.best
    score = MatrixScore.of(learner.data, unit)
    judge = None if score is None else lambda: score(learner.matrix)
    loop = TrainingLoop(learner.schedule.steps, EVALUATIONS, evaluates_start=True)
    outcome = loop.run(learner, progress, judge)
    [steps], [loss], [held_out], [at_start] = outcome.steps, outcome.loss, outcome.held_out, outcome.start
    if held_out is None or at_start is None or held_out > at_start + chance_margin(learner.data, at_start):
        return LayerFit(learner.best, steps, loss, held_out)
    return LayerFit(start, 0, None, at_start)


def chance_margin(data: FitData, score: float) -> float:
    """Return the gain that may be due to chance: a quarter of the standard error, since the comparison is paired."""
    people = max(1, len(np.unique(data.held_out.people))) if data.held_out else 1
    return 0.25 * math.sqrt(max(score * (1 - score), 0.0) / people)


class MatrixScore:
    """Scores (r, p) matrices on held-out people."""

    def __init__(self, data: FitData, unit: bool) -> None:
        self._matrix: Tensor | None = None

        def embed(faces: Ids) -> Tensor:
            assert self._matrix is not None, "a matrix is scored"
            z = data.select(faces) @ self._matrix
            return normalize(z) if unit else z

        self._score = data.make_score(embed)

    @classmethod
    def of(cls, data: FitData, unit: bool) -> "MatrixScore | None":
        """Make a score; None if nobody is held out. unit: whether embeddings are divided by their norm"""
        made = cls(data, unit)
        return made if made._score else None

    def __call__(self, matrix: Tensor) -> float:
        self._matrix = matrix
        return self._score() if self._score else 0.0
