"""Carry distances over from one embedding of the same faces to another, by what becomes of their distances."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_DISTANCES = 50
"""With fewer distances in both embeddings, what becomes of others is not known."""
MIN_BELOW, KEPT_QUANTILES = 10, 50
"""The first quantile has so many distances below it: the very nearest tell little. As many are kept, denser there."""


@dataclass(frozen=True)
class DistanceMap:
    """Maps distances of one embedding to those of another.

    before, after: quantiles of the distances that were seen in both, rising
    """

    before: tuple[float, ...]
    after: tuple[float, ...]

    @classmethod
    def fit(cls, before: Floats, after: Floats) -> Self | None:
        """Learn the map from the (n,) distances of the same searches, or pairs, in both embeddings.

        Infinite distances, of searches that found nobody, are left out. Returns None with fewer than MIN_DISTANCES.
        """
        is_finite = np.isfinite(before) & np.isfinite(after)
        if is_finite.sum() < MIN_DISTANCES:
            return None
        shares = np.geomspace(MIN_BELOW / is_finite.sum(), 1.0, KEPT_QUANTILES)
        known = (np.quantile(distances[is_finite], shares) for distances in (before, after))
        return cls(*(tuple(quantiles.tolist()) for quantiles in known))

    def apply(self, distances: Floats) -> Floats:
        """Map (n,) distances. Infinite ones stay so.

        Those between the quantiles are interpolated. One that is nearer than the first quantile keeps its difference to
        it, or its ratio, whichever makes it nearer, so that no stranger is taken to lie farther away; one beyond the
        last keeps its difference.
        """
        before, after = np.array(self.before), np.array(self.after)
        result: Floats = np.interp(distances, before, after)
        nearer, farther = distances < before[0], distances > before[-1]
        result[nearer] = after[0] + distances[nearer] - before[0]
        if before[0] > 0 and after[0] > 0:
            result[nearer] = np.minimum(result[nearer], distances[nearer] * (after[0] / before[0]))
        result[farther] = after[-1] + distances[farther] - before[-1]
        return result
