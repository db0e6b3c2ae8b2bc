"""Average CoSiM: a weighted mean of what several descriptors say (000, equations 8 to 14)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ml.embedders.base import Progress, TaskData, TrainingSet
from ml.metric import Metric
from ml.metric_learning.cosim.embedder import Collaborative, in_turn

RATIOS = (1 / 3, 1 / 2, 2.0, 3.0)
"""What one descriptor's share is tried at, beside 1 of each other's."""


@dataclass
class CosimAverage(Collaborative):
    """P(same) = sum_i a_i sigmoid(<W_i x_i, W_i y_i> + b_i), learned jointly; sum_i a_i = 1.

    The distance is ln(1 - P) - ln P, which is exact.

    shares: "equal": a_i = 1 / n; "search": cross-validated over `parts` parts of the people, each descriptor in turn
    with a third, half, twice and three times the share of the others. That takes parts x (4 n + 1) fits.
    """

    shares: Literal["equal", "search"] = "equal"
    parts: int = 3
    together: ClassVar[bool] = False

    @property
    def metric(self) -> Metric:
        if not self.learned:
            return Metric("average")
        widths = tuple(len(weights) for weights in self._learned("weights"))
        return Metric(
            "average", 0, widths, tuple(self.learned["shares"].tolist()), tuple(self.learned["bias"].tolist())
        )

    def _blocks(self, data: TrainingSet) -> tuple[int, ...]:
        return data.widths

    def _shares(self, x: Tensor, task: TaskData, progress: Progress) -> tuple[Tensor, Progress]:
        if self.shares == "equal" or len(x) == 1:
            return super()._shares(x, task, progress)
        tried = _candidates(len(x)).to(x)
        scores, whole = np.zeros(tried.shape[1]), (self.parts + 1) * self.steps
        for number, people in enumerate(np.array_split(in_turn(task, self.seed), self.parts)):
            kept, judges = self._pools(*self._apart(task, people), x.device)
            if judges:
                fits, told = tried.shape[1], _later(progress, number * self.steps, whole)
                _, found = self._learn(x, [kept] * fits, [judges] * fits, tried, told)
                scores += np.array(found.held_out, np.float64)
        return tried[:, [int(scores.argmax())]], _later(progress, self.parts * self.steps, whole)


def _later(progress: Progress, before: int, whole: int) -> Progress:
    return lambda step, _, told: progress(before + step, whole, told)


def _candidates(n: int) -> Tensor:
    """(n, F): equal shares first, which win a tie, and those in which one descriptor stands out."""
    odd = [torch.where(torch.arange(n) == i, ratio, 1.0) for ratio in RATIOS for i in range(n)]
    tried = {tuple((raw / raw.sum()).tolist()): None for raw in (torch.ones(n), *odd)}
    return torch.tensor(list(tried)).T.contiguous()
