"""Adam on the logistic loss over batches of pairs, with a running average of the parameters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ml.embedders.base import Progress
from ml.metric_learning.fit_data import FitData
from ml.metric_learning.held_out_score import Score
from ml.metric_learning.logistic.loss import spherical_loss
from ml.metric_learning.logistic.maps import LearnableMap
from ml.metric_learning.logistic.operating_point import OperatingLoss
from ml.metric_learning.logistic.pair_batches import PairBatches
from ml.metric_learning.tensors import FusedAdam
from ml.metric_learning.training_loop import TrainingLoop, TrainingOutcome, averaging_pace


@dataclass(frozen=True)
class AdamSchedule:
    """steps: batches

    rate: Adam's step, relative to each parameter's size; it falls to zero over the last half
    bias_rate: the same for the bias, which does not fall
    averaging: how slowly the average of the parameters follows them (0: not averaged)
    radius: length that z is scaled to in the loss; 0: not scaled
    operating: the operating point whose loss is added; None: none
    """

    steps: int
    rate: float
    bias_rate: float = 0.01
    averaging: float = 0.98
    radius: float = 0.0
    operating: OperatingLoss | None = None


class LogisticLearner:
    """Steps a map and the bias b of the loss, and keeps their running average."""

    def __init__(
        self, model: LearnableMap, coordinates: Tensor, batches: PairBatches, schedule: AdamSchedule, bias: float
    ) -> None:
        self.model, self.coordinates, self.batches, self.schedule = model, coordinates, batches, schedule
        self.bias = torch.tensor(bias, dtype=coordinates.dtype, device=coordinates.device)
        self.averaged = [p.clone() for p in self._parameters]
        self.best = self.averaged
        self.adam = FusedAdam(self._parameters)

    @property
    def _parameters(self) -> list[Tensor]:
        return [*self.model.parameters, self.bias]

    def step(self, step: int) -> float:
        """Learn from one batch. See `BatchLearner.step`; the loss is () or (fits,)."""
        schedule = self.schedule
        left = min(1.0, 2 * (1 - (step - 1) / schedule.steps))
        rates = [*(schedule.rate * size * left for size in self.model.sizes), schedule.bias_rate]
        batch = self.batches.draw(self.coordinates.device, self.coordinates.dtype)
        rows = self.coordinates[torch.from_numpy(batch.faces).to(self.coordinates.device)]
        z = self.model.project(rows, batch.faces)
        loss, by_z, by_bias = spherical_loss(z, self.bias, batch, schedule.radius, schedule.operating)
        gradients = [*self.model.gradients(rows, batch.faces, by_z), by_bias]
        self.adam.step(gradients, rates)
        torch._foreach_lerp_(self.averaged, self._parameters, averaging_pace(step, schedule.averaging))
        return loss

    def keep(self, improved: Tensor) -> None:
        """Keep the parameters of these (fits,) as the best so far. See `BatchLearner.keep`."""
        self.best = [p.clone() for p in self.averaged]

    def score(self, score: Score) -> float:
        """Return the score of the averaged parameters."""
        live = [p.clone() for p in self.model.parameters]
        for parameter, mean in zip(self.model.parameters, self.averaged, strict=False):
            parameter.copy_(mean)
        value = score()
        for parameter, kept in zip(self.model.parameters, live, strict=True):
            parameter.copy_(kept)
        return value

    def restore(self) -> float:
        """Set the map to its best parameters, and return their bias."""
        for parameter, best in zip(self._parameters, self.best, strict=True):
            parameter.copy_(best)
        return float(self.bias)


def descend(
    data: FitData,
    model: LearnableMap,
    batches: PairBatches,
    bias: float,
    schedule: AdamSchedule,
    progress: Progress,
    *,
    early_stopping: bool = True,
) -> tuple[float, TrainingOutcome]:
    """Fit the parameters of a map and keep their best average. Returns the bias and the outcome.

    early_stopping: whether held-out people, if there are any, determine the best step
    """
    learner = LogisticLearner(model, data.coordinates, batches, schedule, bias)
    score = data.make_score(lambda faces: model.project(data.select(faces), faces)) if early_stopping else None
    judge = None if score is None else lambda: learner.score(score)
    outcome = TrainingLoop(schedule.steps).run(learner, progress, judge)
    return learner.restore(), outcome
