"""Average linkage between clusters of embeddings, from their means and spreads."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.types import Ids, Rows

Floats = NDArray[np.float64]
PAIRS_PER_BLOCK = 1 << 16


@dataclass(eq=False)
class ClusterMeans:
    """What average linkage needs to know of C clusters. Merging changes it in place.

    The mean distance over all pairs of faces of two clusters follows from their means: exactly for inner products, and
    for squared Euclidean distances once the spreads of both are added. For other distances it is an approximation.

    counts: (C,) faces; means: (C, d) mean embeddings; spreads: (C,) mean squared distance of the faces from their mean
    levels: (C,) mean level of the faces (see `stranger_levels`)
    """

    metric: Distance
    counts: Ids
    means: Rows
    spreads: Floats
    levels: Floats

    @classmethod
    def of(cls, rows: Rows, labels: Ids, levels: Floats, metric: Distance) -> Self:
        """Summarise (N, d) rows and (N,) levels by (N,) cluster numbers, which are 0 to C - 1 without a gap."""
        counts = np.bincount(labels).astype(np.int64)
        mean_levels = np.bincount(labels, levels) / counts
        if len(counts) == len(rows):
            means = np.empty_like(rows)
            means[labels] = rows
            return cls(metric, counts, means, np.zeros(len(rows)), mean_levels)
        order = np.argsort(labels, kind="stable")
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        means = (np.add.reduceat(rows[order], starts, axis=0) / counts[:, None]).astype(np.float32)
        squared = np.concatenate(
            [
                np.square(rows[part] - means[labels[part]], dtype=np.float64).sum(1)
                for part in np.array_split(order, len(order) // PAIRS_PER_BLOCK + 1)
            ]
        )
        return cls(metric, counts, means, np.add.reduceat(squared, starts) / counts, mean_levels)

    def distances(self, pairs: Ids) -> Floats:
        """Compute the mean distance between the faces of each of (P, 2) pairs of clusters: (P,)."""
        distances = np.empty(len(pairs))
        for start in range(0, len(pairs), PAIRS_PER_BLOCK):
            first, second = pairs[start : start + PAIRS_PER_BLOCK].T
            between = self.metric.paired_distances(self.means[first], self.means[second]).astype(np.float64)
            if self.metric.is_euclidean:
                between += self.spreads[first] + self.spreads[second]
            distances[start : start + PAIRS_PER_BLOCK] = between
        return distances

    def merge(self, pairs: Ids) -> None:
        """Merge the second cluster of each of (P, 2) pairs into the first. No cluster may be in two pairs."""
        first, second = pairs.T
        counts = self.counts[first] + self.counts[second]
        share = (self.counts[second] / counts)[:, None]
        step = self.means[second] - self.means[first]
        own, other = self.spreads[first], self.spreads[second]
        between = np.square(step, dtype=np.float64).sum(1)
        self.spreads[first] = own + share[:, 0] * (other - own) + share[:, 0] * (1 - share[:, 0]) * between
        self.means[first] += (share * step).astype(np.float32)
        self.levels[first] += share[:, 0] * (self.levels[second] - self.levels[first])
        self.counts[first], self.counts[second] = counts, 0
