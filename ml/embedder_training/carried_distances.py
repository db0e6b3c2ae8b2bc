"""Carry distances of the fit without the held-out people over to the fit on everybody, which serves.

Each fit has a scale of its own. How the two differ is seen in pairs of different people whom both have learned from.
"""

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import Embedder
from ml.types import Ids, Rows

Floats = NDArray[np.float64]

MIN_COMPARED = 50
"""With fewer pairs under both fits, their scales cannot be compared."""
COMPARED_SHARE = 0.05
"""The nearest pairs of learned people tell little of strangers: the second fit may move these, and no others."""


def carry_over(distances: Floats, before: Floats, after: Floats) -> Floats | None:
    """Carry (S,) distances of one fit over to another, by the (Q,) distances of the same pairs under both.

    A line maps the distance below which COMPARED_SHARE of the pairs are, and the median, of the one fit to those of
    the other. Where no distance is negative, another one maps 0 and the median: if the other fit keeps the nearest
    learned people farther apart, strangers do not move away with them. The stricter line counts, by which a stranger
    comes nearer. Infinite distances stay so.
    Returns None where too few finite distances are compared, or where they are all alike.
    """
    is_finite = np.isfinite(before) & np.isfinite(after)
    if is_finite.sum() < MIN_COMPARED:
        return None
    low, median = np.quantile(before[is_finite], (COMPARED_SHARE, 0.5))
    low_after, median_after = np.quantile(after[is_finite], (COMPARED_SHARE, 0.5))
    if low >= median or low_after >= median_after:
        return None
    nearer: Floats = low_after + (median_after - low_after) / (median - low) * (distances - low)
    if min(before.min(), after.min()) < 0:
        return nearer
    proportional: Floats = distances * (median_after / median)
    return np.minimum(nearer, proportional)


def pair_distances(embedder: Embedder, rows: Rows, pairs: Ids, task: str) -> Floats:
    """Compute the (P,) distances of (P, 2) pairs of (N, D) rows of descriptors."""
    used, ends = np.unique(pairs, return_inverse=True)
    distances = embedder.metric.pair_distances(embedder.embed(rows[used], task), ends.reshape(-1, 2))
    return distances.astype(np.float64)
