"""Batches of faces in which every pair has a sign and a weight."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ml.metric_learning.batches import FaceBatches
from ml.types import Ids

HALF_TRUST_LABELS = 1000
"""If nothing but labelled pairs is known, `negatives` has half of its effect at this number of "not the same" pairs."""


@dataclass(frozen=True, eq=False)
class PairBatch:
    """faces: (B,) indexes into the rows; sign: (B, B) +1 same, -1 not; weight: (B, B), symmetric, sums to 1."""

    faces: Ids
    sign: Tensor
    weight: Tensor


@dataclass(eq=False)
class PairBatches(FaceBatches):
    """negatives: weight of all negatives together over that of all positives"""

    labels_per_batch: int = 64
    labels_alone: int = 5
    negatives: float = 20.0

    def draw(self, device: torch.device, dtype: torch.dtype = torch.float32) -> PairBatch:
        """Draw the faces of the next batch, and label all of their pairs."""
        chosen = self.draw_faces()
        positives, negatives = self._derive(chosen, device)
        labels = self.draw_labels()
        faces = np.concatenate([self.task.faces[chosen], self.task.pairs[labels].ravel()])
        sign = torch.full((len(faces), len(faces)), -1.0, dtype=dtype, device=device)
        weight = torch.zeros_like(sign)
        n = len(chosen)
        sign[:n, :n] += 2.0 * positives
        weight[:n, :n] = (1 - self.label_share) * balance_weights(positives, negatives, self.negatives, dtype)
        if self.label_count:
            self._mix(labels, n, sign, weight)
        return PairBatch(faces, sign, weight)

    def _derive(self, chosen: Ids, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return which pairs of these faces are the same, and which are not; neither where a label overrides them."""
        values = torch.from_numpy(self.task.values[chosen]).to(device)
        positives = (values[:, None] - values[None, :]).abs() <= self.task.tolerance
        negatives = ~positives
        positives.fill_diagonal_(False)
        if len(self.task.pairs):
            located = self.locate_labels(self.task.faces[chosen])
            first, second = torch.from_numpy(located[(located >= 0).all(axis=1)].T).to(device)
            for mask in (positives, negatives):
                mask[first, second] = mask[second, first] = False
        return positives, negatives

    def _mix(self, labels: Ids, n: int, sign: Tensor, weight: Tensor) -> None:
        """Write the labelled pairs, whose faces are in the batch from position `n` on, two by two."""
        same = torch.from_numpy(self.task.same[labels]).to(sign.device)
        label_weight = torch.from_numpy(self.task.weights[labels]).to(weight)
        if not self.derives:
            count = int((~self.task.same).sum())
            trusted = max(1.0, self.negatives * count / (count + HALF_TRUST_LABELS))
            label_weight = label_weight * balance_weights(same, ~same, trusted, weight.dtype)
        label_weight = self.label_share * label_weight / label_weight.sum().clamp_min(1e-12) / 2
        first = n + 2 * torch.arange(len(labels), device=sign.device)
        for i, j in ((first, first + 1), (first + 1, first)):
            sign[i, j] = torch.where(same, 1.0, -1.0).to(sign)
            weight[i, j] = label_weight


def balance_weights(positives: Tensor, negatives: Tensor, ratio: float, dtype: torch.dtype) -> Tensor:
    """Return (B, B) weights that sum to 1, such that all negatives together weigh `ratio` times all positives.

    positives, negatives: (B, B) bool masks
    """
    share = torch.tensor([1.0, ratio], dtype=dtype, device=positives.device)
    counts = torch.stack([positives.sum(), negatives.sum()])
    share = torch.where(counts > 0, share, 0.0)
    per_pair = share / share.sum().clamp_min(1e-12) / counts.clamp_min(1)
    return positives * per_pair[0] + negatives * per_pair[1]
