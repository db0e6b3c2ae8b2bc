"""How many cells an index has, and where they lie."""

from collections.abc import Callable, Sequence
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.types import Ids, Rows

MAX_FLAT_FACES = 10_000
"""Up to this size a search is exhaustive: 0.15 ms on one core at 128 numbers a face, less than a request's overhead."""

MAX_GROWTH = 2.0
MIN_FITTED_SHARE = 0.1
"""Of the faces of a cell, those for which it was placed make its centroid alone while they are so many."""
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


def move_centroids(
    quantizer: Any, cells: Ids, sizes: NDArray[np.int64], read_rows: Callable[[int], Rows], metric: Distance
) -> None:
    """Move the centroids of (n,) cells, from which faces were removed, to the mean of those that are left.

    So an index keeps nothing of a person of whom a cell was full. An empty cell takes the mean of the other centroids.
    quantizer: the faiss.IndexFlat of the centroids; sizes: (p,) faces in each cell, not all 0
    read_rows: returns the (n, d) rows of a cell that make its centroid: see `choose_fitted`
    """
    flat = faiss.downcast_index(quantizer)
    centroids = faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)
    for cell in cells[sizes[cells] > 0].tolist():
        centroids[cell] = _find_centre(read_rows(cell), metric)
    centroids[cells[sizes[cells] == 0]] = _find_centre(centroids[sizes > 0], metric)


def choose_fitted(ids: Ids, rows: Rows, last_fitted: int) -> Rows:
    """Return the (n, d) rows of a cell that were there when the cells were placed, or all if few of these are left.

    Those who came later may be unlike them all. With these, the centroid of a cell would move away from the others,
    which no search for them would find there any more. Nor would those who came later be found by the few that are
    left: see MIN_FITTED_SHARE.

    ids: (n,), rising with time; last_fitted: the last of that time
    """
    is_fitted = ids <= last_fitted
    return rows[is_fitted] if np.count_nonzero(is_fitted) >= MIN_FITTED_SHARE * max(1, len(ids)) else rows


def _find_centre(rows: Rows, metric: Distance) -> Rows:
    """Return the mean of (n, d) rows: (d,), of length 1 for inner products as in `fit_centroids`."""
    mean: Rows = rows.mean(0, dtype=np.float64).astype(np.float32)
    return mean / max(float(np.linalg.norm(mean)), 1e-30) if metric.faiss_metric == "INNER_PRODUCT" else mean


def imbalance(sizes: NDArray[np.int64]) -> float:
    """Return p * sum(s^2) / (sum s)^2 for (p,) cell sizes s: 1 if all are equal; a search costs that much more."""
    return float(len(sizes) * (sizes.astype(np.float64) ** 2).sum() / max(1, sizes.sum()) ** 2)


def has_outgrown(sizes: NDArray[np.int64], trained_on: int, trained_imbalance: float) -> bool:
    """Whether cells of these (p,) sizes hold more than twice the faces they were made for, or are twice as uneven."""
    return sizes.sum() > MAX_GROWTH * trained_on or imbalance(sizes) > MAX_IMBALANCE_GROWTH * trained_imbalance
