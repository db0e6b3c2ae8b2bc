"""Draw pairs of faces with the same value and with different values."""

import numpy as np
from numpy.typing import NDArray

from ml.types import Ids


def draw_pairs(
    values: NDArray[np.float64], tolerance: float, limit: int, rng: np.random.Generator
) -> tuple[Ids, NDArray[np.bool_]]:
    """Draw at most `limit` different pairs, half of them the same if there are so many.

    values: (N,), NaN where unknown; values that differ by at most `tolerance` are the same
    Returns (P, 2) indices, the smaller first, and (P,) whether each pair is the same. A value is drawn before its
    faces, so that people with many faces do not dominate.
    """
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(values[known], kind="stable")]
    ranked = values[order]
    low, high = (
        np.searchsorted(ranked, ranked - tolerance, "left"),
        np.searchsorted(ranked, ranked + tolerance, "right"),
    )
    levels = np.unique(ranked, return_index=True)[1]
    levels = levels[(high - low)[levels] > 1]
    empty = np.empty((0, 2), np.int64)
    alike = empty
    if len(levels):
        first = rng.choice(levels, 4 * limit)
        ends = low[first] + rng.integers(0, 2**62, (2, len(first))) % (high - low)[first]
        alike = _unique_pairs(order[ends.T])[: limit // 2]
    different = empty
    if len(order) > 1:
        ends = order[rng.integers(0, len(order), (4 * limit, 2))]
        far = np.abs(values[ends[:, 0]] - values[ends[:, 1]]) > tolerance
        different = _unique_pairs(ends[far])[: limit - limit // 2]
    return np.concatenate([alike, different]), np.repeat([True, False], [len(alike), len(different)])


def are_among(pairs: Ids, others: Ids) -> NDArray[np.bool_]:
    """Return (P,) which of these pairs are among the others, in either order. pairs: (P, 2); others: (Q, 2)."""
    known = {tuple(sorted(pair)) for pair in others.tolist()}
    return np.array([tuple(sorted(pair)) in known for pair in pairs.tolist()], np.bool_)


def _unique_pairs(pairs: Ids) -> Ids:
    """Return each pair once, in the order drawn, without pairs of a face with itself."""
    pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    width = pairs[:, 1].max(initial=0) + 1
    _, first = np.unique(pairs[:, 0] * width + pairs[:, 1], return_index=True)
    return pairs[np.sort(first)]
