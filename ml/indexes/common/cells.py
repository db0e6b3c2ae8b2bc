"""How many cells an index has, and where they lie."""

from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.types import Rows

MAX_FLAT_FACES = 10_000
"""Up to this size a search is exhaustive: 0.15 ms on one core at 128 numbers a face, less than a request's overhead."""

MAX_GROWTH = 2.0
MAX_REPLACED_SHARE = 0.5
"""An index is built anew once more of the faces for which its cells were placed are gone."""
MAX_IMBALANCE_GROWTH = 2.0
"""An index is worth rebuilding when its size, or the imbalance of its cells, exceeds that at training so many times."""

KMEANS_STAGES = ((32, 15), (256, 4))
"""Rows per cell that k-means reads, and its iterations, stage by stage, each from the centroids of the one before. With
a million drawn faces in 1,024 cells, 512 rows and 25 iterations take nine times as long, for a recall of the ten
nearest of 50.1 % with 8 cells probed, and 71.5 with 64; 32 and 15, then 256 and 3: 50.8 and 72.2 (2,000 queries)."""
MAX_SAMPLES_PER_CELL = max(samples for samples, _ in KMEANS_STAGES)


def default_cell_count(n: int) -> int:
    """Return the number of cells for n faces: the power of two nearest to the square root of n; 1 if n is small.

    Source: 003, which has 1,024 cells for a million faces.
    """
    return 1 if n <= MAX_FLAT_FACES else 1 << round(np.log2(n) / 2)


def fit_centroids(
    rows: Rows, p: int, metric: Distance, seed: int, stages: Sequence[tuple[int, int]] = KMEANS_STAGES
) -> Rows:
    """Fit (p, d) centroids to (N, d) rows by k-means. stages: as `KMEANS_STAGES`

    For inner products it clusters directions (spherical k-means).
    """
    centroids: Rows | None = None
    for samples, rounds in stages:
        kmeans = faiss.Kmeans(
            rows.shape[1],
            p,
            niter=rounds,
            seed=seed,
            spherical=metric.faiss_metric == "INNER_PRODUCT",
            min_points_per_centroid=1,
            max_points_per_centroid=samples,
        )
        kmeans.train(rows, init_centroids=centroids)
        centroids = np.asarray(kmeans.centroids)  # a tensor if another library loaded faiss.contrib.torch_utils
    assert centroids is not None, "there is a stage"
    return centroids


def imbalance(sizes: NDArray[np.int64]) -> float:
    """Return p * sum(s^2) / (sum s)^2 for (p,) cell sizes s: 1 if all are equal; a search costs that much more."""
    return float(len(sizes) * (sizes.astype(np.float64) ** 2).sum() / max(1, sizes.sum()) ** 2)


def has_outgrown(sizes: NDArray[np.int64], trained_on: int, trained_imbalance: float) -> bool:
    """Whether cells of these (p,) sizes hold more than twice the faces they were made for, or are twice as uneven."""
    return sizes.sum() > MAX_GROWTH * trained_on or imbalance(sizes) > MAX_IMBALANCE_GROWTH * trained_imbalance
