"""Comparisons to learn from: two faces that are the same, and two that are not, nearer than which they should be."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ml.embedders.base import TaskData
from ml.metric_learning.batches import HALF_HEARD
from ml.metric_learning.pairs import keys, pool
from ml.types import Ids


@dataclass(eq=False)
class Triplets:
    """Draws (i, j, k, l): i and j are the same, k and l are not, and k is i wherever the person of i is known.

    Pairs of the same are drawn from a pool in which people stand evenly. corrections: the share of the comparisons
    in which an explicit label has a part, of either kind, once there are many of it.
    """

    data: TaskData
    rng: np.random.Generator
    budget: int
    corrections: float

    def __post_init__(self) -> None:
        drawn = pool(self.data, self.budget, self.rng, torch.device("cpu"))
        pairs, same = drawn.pairs.numpy(), drawn.sign.numpy() > 0
        derived = np.arange(len(pairs)) < len(pairs) - len(self.data.pairs)
        self.kinds = [(pairs[derived & kind], pairs[~derived & kind]) for kind in (same, ~same)]
        known = ~np.isnan(self.data.values)
        self.known, self.values = self.data.faces[known], self.data.values[known]
        top = int(max(self.data.faces.max(), self.data.pairs.max(initial=0)))
        self.value = np.full(top + 1, np.nan)
        self.value[self.known] = self.values
        self.told = np.unique(keys(self.data.pairs))

    def draw(self, count: int) -> Ids:
        """(count, 4) indexes into the rows."""
        (alike, _), (apart, heard) = (self._some(*kind, count) for kind in self.kinds)
        if len(self.known) > 1:
            anchored = np.stack([alike[:, 0], self.known[self.rng.integers(0, len(self.known), count)]], 1)
            far = np.abs(np.subtract(*self.value[anchored.T])) > self.data.tolerance  # not so where one is unknown
            good = far & ~heard & ~np.isin(keys(anchored), self.told)
            apart = np.where(good[:, None], anchored, apart)
        return np.concatenate([alike, apart], axis=1)

    def _some(self, derived: Ids, told: Ids, count: int) -> tuple[Ids, NDArray[np.bool_]]:
        """(count, 2) pairs of either, and which of them were told by a label: all, where none can be derived."""
        share = self.corrections * len(told) / (len(told) + HALF_HEARD) if len(derived) else 1.0
        heard = self.rng.random(count) < share
        pairs = np.concatenate([derived, told])
        chosen = self.rng.integers(0, np.where(heard, len(told), len(derived)))
        return pairs[np.where(heard, len(derived), 0) + chosen], heard
