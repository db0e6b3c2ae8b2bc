"""Average CoSiM: a weighted mean of the probabilities that several descriptors give.

Source: 000, equations 8 to 14.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ml.distances import Distance
from ml.distances.averaged import Averaged
from ml.embedders.base import Progress, TaskData, TrainingSet, offset_progress
from ml.metric_learning.cosim.embedder import SimilarityEmbedder
from ml.metric_learning.holdout import shuffle_people
from ml.options import option

WEIGHT_RATIOS = (1 / 3, 1 / 2, 2.0, 3.0)
"""Shares that are tried for one descriptor, relative to the share of each other one."""


@dataclass
class CosimAverage(SimilarityEmbedder):
    """P(same) = sum_i a_i sigmoid(<W_i x_i, W_i y_i> + b_i), learned jointly; sum_i a_i = 1.

    The distance is ln(1 - P) - ln P, which is exact.
    """

    shares: Literal["equal", "search"] = option(
        "equal",
        "equal: a_i = 1 / n; search: cross-validation over `parts` parts of the people, where each descriptor in turn "
        "has 1/3, 1/2, 2 and 3 times the share of the others; this takes parts x (4 n + 1) fits",
    )
    parts: int = option(3, "parts into which the search for shares divides the people", low=2, unit="parts")
    summed: ClassVar[bool] = False

    @property
    def metric(self) -> Distance:
        if not self.learned:
            return Averaged()
        widths = tuple(len(weights) for weights in self._get_learned("weights"))
        shares, biases = (tuple(self.learned[name].tolist()) for name in ("shares", "bias"))
        return Averaged(widths, shares, biases)

    def _get_blocks(self, data: TrainingSet) -> tuple[int, ...]:
        return data.widths

    def _choose_shares(self, x: Tensor, task: TaskData, progress: Progress) -> tuple[Tensor, Progress]:
        if self.shares == "equal" or len(x) == 1:
            return super()._choose_shares(x, task, progress)
        candidates = _list_candidates(len(x)).to(x)
        fits = candidates.shape[1]
        scores, total = np.zeros(fits), (self.parts + 1) * self.fitting.steps
        for number, people in enumerate(np.array_split(shuffle_people(task, self.seed), self.parts)):
            pairs, judges = self._draw_pairs(*self._hold_out(task, people), x.device)
            if judges:
                report = offset_progress(number * self.fitting.steps, total, progress)
                _, outcome = self._learn(x, [pairs] * fits, [judges] * fits, candidates, report)
                scores += np.array(outcome.held_out, np.float64)
        return candidates[:, [int(scores.argmax())]], offset_progress(self.parts * self.fitting.steps, total, progress)


def _list_candidates(n: int) -> Tensor:
    """List the candidate shares, (n, F): equal shares, which win a tie, and those that favour one descriptor."""
    uneven = [torch.where(torch.arange(n) == i, ratio, 1.0) for ratio in WEIGHT_RATIOS for i in range(n)]
    candidates = {tuple((raw / raw.sum()).tolist()): None for raw in (torch.ones(n), *uneven)}
    return torch.tensor(list(candidates)).T.contiguous()
