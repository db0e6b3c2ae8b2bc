"""Draw comparisons of two pairs: two faces that are the same should be nearer than two that are not."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ml.embedders.base import TaskData
from ml.metric_learning.batches import compute_label_share
from ml.metric_learning.pairs import draw_pair_set, pair_keys
from ml.types import Ids


@dataclass(eq=False)
class TripletBatches:
    """Draws (i, j, k, l): i and j are the same, k and l are not, and k is i wherever the person of i is known.

    Pairs of the same are drawn from a pair set in which people are balanced.
    corrections: the share of the comparisons in which a labelled pair takes part, for positives and for negatives,
    once there are many
    """

    task: TaskData
    rng: np.random.Generator
    budget: int
    corrections: float

    def __post_init__(self) -> None:
        pair_set = draw_pair_set(self.task, self.budget, self.rng, torch.device("cpu"))
        pairs, same = pair_set.pairs.numpy(), pair_set.sign.numpy() > 0
        derived = np.arange(len(pairs)) < len(pairs) - len(self.task.pairs)
        self.pools = [(pairs[derived & kind], pairs[~derived & kind]) for kind in (same, ~same)]
        known = ~np.isnan(self.task.values)
        self.known_faces = self.task.faces[known]
        face_count = 1 + int(max(self.task.faces.max(), self.task.pairs.max(initial=0)))
        self.value = np.full(face_count, np.nan)
        self.value[self.known_faces] = self.task.values[known]
        self.labelled_keys = np.unique(pair_keys(self.task.pairs))

    def draw(self, count: int) -> Ids:
        """Draw (count, 4) indexes of rows."""
        (positives, _), (negatives, labelled) = (self._draw_pairs(*pool, count) for pool in self.pools)
        if len(self.known_faces) > 1:
            others = self.known_faces[self.rng.integers(0, len(self.known_faces), count)]
            anchored = np.stack([positives[:, 0], others], 1)
            different = np.abs(np.subtract(*self.value[anchored.T])) > self.task.tolerance  # False for NaN
            usable = different & ~labelled & ~np.isin(pair_keys(anchored), self.labelled_keys)
            negatives = np.where(usable[:, None], anchored, negatives)
        return np.concatenate([positives, negatives], axis=1)

    def _draw_pairs(self, derived: Ids, labelled: Ids, count: int) -> tuple[Ids, NDArray[np.bool_]]:
        """Draw (count, 2) pairs, and return which of them are labelled ones: all, if none can be derived."""
        share = compute_label_share(self.corrections, len(labelled)) if len(derived) else 1.0
        from_labels = self.rng.random(count) < share
        pairs = np.concatenate([derived, labelled])
        chosen = self.rng.integers(0, np.where(from_labels, len(labelled), len(derived)))
        return pairs[np.where(from_labels, len(derived), 0) + chosen], from_labels
