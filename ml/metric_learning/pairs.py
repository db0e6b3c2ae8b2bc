"""A fixed set of pairs, drawn once from the values of a task, which includes its labelled pairs."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ml.embedders.base import TaskData
from ml.types import Ids


@dataclass(frozen=True, eq=False)
class PairSet:
    """pairs: (P, 2) indexes into the rows; sign: (P,) +1 same, -1 not; weight: (P,)."""

    pairs: Tensor
    sign: Tensor
    weight: Tensor

    def select(self, chosen: Ids) -> "PairSet":
        """Return the pairs at these (n,) positions."""
        index = torch.from_numpy(chosen).to(self.pairs.device)
        return PairSet(self.pairs[index], self.sign[index], self.weight[index])


@dataclass(eq=False)
class PairCycle:
    """Iterates over `count` pairs in random order, `batch` at a time, with a new order in each round."""

    count: int
    batch: int
    rng: np.random.Generator
    _left: Ids = field(default_factory=lambda: np.empty(0, np.int64))

    def draw(self) -> Ids:
        """Return the (batch,) indexes of the next pairs."""
        while len(self._left) < self.batch:
            self._left = np.concatenate([self._left, self.rng.permutation(self.count)])
        chosen, self._left = np.split(self._left, [self.batch])
        return chosen


def draw_pair_set(
    task: TaskData, budget: int, rng: np.random.Generator, device: torch.device, *, negative_share: float = 0.5
) -> PairSet:
    """Draw `budget` pairs derived from values, a share of them negative, and add all labelled pairs.

    A value (a person, an age) is drawn first and then the pair, so that people with many photos do not dominate.
    Labelled pairs override derived ones.
    """
    positives, negatives = round(budget * (1 - negative_share)), round(budget * negative_share)
    pairs, same = derive_pairs(task, positives, negatives, rng)
    if len(task.pairs) and len(pairs):
        unlabelled = ~np.isin(pair_keys(pairs), pair_keys(task.pairs))
        pairs, same = pairs[unlabelled], same[unlabelled]
    weight = np.concatenate([np.ones(len(pairs), np.float32), task.weights.astype(np.float32)])
    pairs, same = np.concatenate([pairs, task.pairs]), np.concatenate([same, task.same])
    sign = np.where(same, 1, -1).astype(np.float32)
    return PairSet(*(torch.from_numpy(part).to(device) for part in (pairs, sign, weight)))


def derive_pairs(
    task: TaskData, positives: int, negatives: int, rng: np.random.Generator
) -> tuple[Ids, NDArray[np.bool_]]:
    """Derive `positives` positive and at most `negatives` negative pairs from the faces with known values.

    Returns (P, 2) indexes of rows, and (P,) whether the pair is the same.
    """
    known = np.flatnonzero(~np.isnan(task.values))
    order = known[np.argsort(task.values[known], kind="stable")]
    values = task.values[order]
    levels, first = np.unique(values, return_index=True)
    low = np.searchsorted(values, levels - task.tolerance, "left")
    high = np.searchsorted(values, levels + task.tolerance, "right")
    counts = np.diff(np.append(first, len(values)))
    shared = np.flatnonzero(high - low > 1)
    positive_pairs = negative_pairs = np.empty((0, 2), np.int64)
    if len(shared):
        level = shared[rng.integers(0, len(shared), positives)]
        a = first[level] + rng.integers(0, counts[level])
        b = low[level] + rng.integers(0, high[level] - low[level] - 1)
        positive_pairs = np.stack([a, b + (b >= a)], 1)
    if len(levels) > 1:
        level = rng.integers(0, len(levels), (2 * negatives, 2))
        ends = first[level] + rng.integers(0, counts[level])
        negative_pairs = ends[np.abs(np.subtract(*values[ends].T)) > task.tolerance][:negatives]
    same = np.repeat([True, False], [len(positive_pairs), len(negative_pairs)])
    return task.faces[order[np.concatenate([positive_pairs, negative_pairs])]].reshape(-1, 2), same


def pair_keys(pairs: Ids) -> Ids:
    """Return (P,) one number for each of (P, 2) pairs, whatever the order of its faces."""
    ends = np.sort(pairs, axis=1)
    return (ends[:, 0] << 32) + ends[:, 1]


def median_pair_distance(rows: Tensor, pairs: PairSet, projection: Tensor | None = None, limit: int = 2000) -> float:
    """Return the median squared distance of the pairs, after a projection if one is given; never zero.

    rows: (N, D); projection: (d, D)
    """
    sample = torch.linspace(0, len(pairs.sign) - 1, min(limit, len(pairs.sign)), device=pairs.sign.device).long()
    i, j = pairs.pairs[sample].T
    u = rows[i] - rows[j] if projection is None else (rows[i] - rows[j]) @ projection.T
    return max(float(u.square().sum(1).median()), 1e-12)


def scale_to_distance(projection: Tensor, rows: Tensor, pairs: PairSet, distance: float) -> Tensor:
    """Scale a projection (d, D) so that the median squared distance of the pairs is `distance`.

    rows: (N, D); returns (d, D)
    """
    factor: float = (distance / median_pair_distance(rows, pairs, projection)) ** 0.5
    return torch.mul(projection, factor)
