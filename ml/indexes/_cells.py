"""How many cells a collection wants, and how the cells are found."""

import faiss
import numpy as np
from numpy.typing import NDArray

from ml.metric import Metric
from ml.types import Rows

SMALL = 10_000
"""Up to here a search is exhaustive: 0.15 ms on one core at 128 numbers a face, less than a request's own overhead."""

PER_CELL, ROUNDS = 512, 25
"""Rows a cell that k-means looks at, and how often. Of a million drawn faces, 8 of 1,024 cells probed, the ten nearest
are found to 85.7 and 85.6 % (two seeds, 3,000 queries); with 256 and 15 to 85.4 and 84.8; with all rows, which must be
held, to 86.0 and 86.2."""


def default_cells(n: int) -> int:
    """p for n faces: the power of two nearest to the root of n (003: 1,024 for a million); 1 where n is small."""
    return 1 if n <= SMALL else 1 << round(np.log2(n) / 2)


def centroids(rows: Rows, p: int, metric: Metric, seed: int) -> Rows:
    """(p, d) by k-means over at most `PER_CELL` p of the rows; for inner products over their directions."""
    means = faiss.Kmeans(
        rows.shape[1],
        p,
        niter=ROUNDS,
        seed=seed,
        spherical=metric.kind == "ip",
        min_points_per_centroid=1,
        max_points_per_centroid=PER_CELL,
    )
    means.train(rows)
    found: Rows = np.asarray(means.centroids)  # a tensor once faiss.contrib.torch_utils was loaded by another library
    return found


def imbalance(sizes: NDArray[np.int64]) -> float:
    """p * sum(s^2) / (sum s)^2: 1 where all cells are of one size; what a search pays for it."""
    return float(len(sizes) * (sizes.astype(np.float64) ** 2).sum() / max(1, sizes.sum()) ** 2)
