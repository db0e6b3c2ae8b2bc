"""How many cells an index has, and where they lie."""

import faiss
import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.types import Rows

MAX_FLAT_FACES = 10_000
"""Up to this size a search is exhaustive: 0.15 ms on one core at 128 numbers a face, less than a request's overhead."""

MAX_GROWTH = 2.0
MAX_IMBALANCE_GROWTH = 2.0
"""An index is worth rebuilding when its size, or the imbalance of its cells, exceeds that at training so many times."""

MAX_SAMPLES_PER_CELL, KMEANS_ROUNDS = 512, 25
"""Rows per cell that k-means reads, and its iterations. With 8 of 1,024 cells probed among a million synthetic faces,
the recall of the ten nearest is 85.7 and 85.6 % (two seeds, 3,000 queries); with 256 and 15 it is 85.4 and 84.8 %;
with all rows, which must be held in memory, 86.0 and 86.2 %."""


def default_cell_count(n: int) -> int:
    """Return the number of cells for n faces: the power of two nearest to the square root of n; 1 if n is small.

    Source: 003, which has 1,024 cells for a million faces.
    """
    return 1 if n <= MAX_FLAT_FACES else 1 << round(np.log2(n) / 2)


def fit_centroids(rows: Rows, p: int, metric: Distance, seed: int) -> Rows:
    """Fit (p, d) centroids to (N, d) rows by k-means, over at most `MAX_SAMPLES_PER_CELL` rows per cell.

    For inner products it clusters directions (spherical k-means).
    """
    kmeans = faiss.Kmeans(
        rows.shape[1],
        p,
        niter=KMEANS_ROUNDS,
        seed=seed,
        spherical=metric.faiss_metric == "INNER_PRODUCT",
        min_points_per_centroid=1,
        max_points_per_centroid=MAX_SAMPLES_PER_CELL,
    )
    kmeans.train(rows)
    centroids: Rows = np.asarray(kmeans.centroids)  # a tensor if another library loaded faiss.contrib.torch_utils
    return centroids


def imbalance(sizes: NDArray[np.int64]) -> float:
    """Return p * sum(s^2) / (sum s)^2 for (p,) cell sizes s: 1 if all are equal; a search costs that much more."""
    return float(len(sizes) * (sizes.astype(np.float64) ** 2).sum() / max(1, sizes.sum()) ** 2)


def has_outgrown(sizes: NDArray[np.int64], trained_on: int, trained_imbalance: float) -> bool:
    """Whether cells of these (p,) sizes hold more than twice the faces they were made for, or are twice as uneven."""
    return sizes.sum() > MAX_GROWTH * trained_on or imbalance(sizes) > MAX_IMBALANCE_GROWTH * trained_imbalance
