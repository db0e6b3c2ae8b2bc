"""A loss at the operating point of a search: true pairs that are missed, and the nearest face of somebody else."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ml.metric_learning.logistic.pair_batches import PairBatch
from ml.metric_learning.tensors import squared_distances

FALSE_MATCH_RATE = 1e-3
SHARPNESS = 10.0
"""Logits by which the loss of a pair changes as its squared distance changes by that of the threshold."""


@dataclass(frozen=True)
class OperatingLoss:
    """Where the loss is measured.

    weight: of this loss beside that of all pairs; threshold: the squared distance up to which a search accepts a face
    """

    weight: float
    threshold: float

    def measure(self, z: Tensor, batch: PairBatch) -> tuple[float, Tensor]:
        """Compute the loss of (B, d) rows, and its gradient by them, (B, d).

        Half of the weight falls on the pairs of the same, the other half on the searches: each face searches among the
        batch, and the nearest face that is known to be of somebody else should not be accepted.
        """
        distances = squared_distances(z)
        known = batch.weight > 0
        weight = _balance(distances, known & (batch.sign > 0), known & (batch.sign < 0)) * self.weight
        scale = SHARPNESS / self.threshold
        margin = batch.sign * scale * (self.threshold - distances)
        pull = scale * weight * batch.sign * torch.sigmoid(-margin)
        by_z = 4 * (pull.sum(1, keepdim=True) * z - pull @ z)
        return float((weight * torch.nn.functional.softplus(-margin)).sum()), by_z


def find_threshold(z: Tensor, batch: PairBatch) -> float:
    """Return the squared distance below which a share FALSE_MATCH_RATE of the batch's negatives lies. z: (B, d)"""
    negatives = squared_distances(z)[(batch.weight > 0) & (batch.sign < 0)]
    if not len(negatives):
        return float(squared_distances(z).mean())
    return max(float(torch.quantile(negatives[: 1 << 23], FALSE_MATCH_RATE)), 1e-12)


def _balance(distances: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """Return symmetric (B, B) weights that sum to 1: positives evenly, and the nearest negative of each face."""
    nearest = torch.where(negatives, distances, torch.inf).min(1)
    searches = torch.zeros_like(distances)
    has_negative = torch.isfinite(nearest.values)
    searches[has_negative, nearest.indices[has_negative]] = 1.0
    searches = (searches + searches.T) / 2
    positives = positives.to(distances)
    return (positives / positives.sum().clamp_min(1) + searches / searches.sum().clamp_min(1)) / 2
