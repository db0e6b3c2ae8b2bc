"""Derive pairs from labelled pairs by transitivity: if a and b are the same and b and c are, so are a and c."""

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.types import Ids

MAX_IMPLIED_PAIRS = 200
"""Implied pairs per labelled pair. Without a limit, large groups of faces would outweigh all others."""


def derive_implied_pairs(
    pairs: Ids, same: NDArray[np.bool_], rng: np.random.Generator, max_pairs: int = MAX_IMPLIED_PAIRS
) -> tuple[Ids, NDArray[np.bool_]]:
    """Derive the pairs that follow from labelled pairs and are not labelled themselves.

    Faces joined by "same" labels form a group, and all pairs within it are the same. One "not the same" label between
    two groups applies to every pair between them. A group with a "not the same" label inside contradicts itself and
    implies nothing.
    pairs: (P, 2) face ids; same: (P,) bool; max_pairs: pairs implied by one labelled pair
    Returns (Q, 2) face ids, the smaller first and each pair once, and (Q,) whether they are the same.
    """
    faces, at = np.unique(pairs, return_inverse=True)
    at = at.reshape(-1, 2)
    joined = scipy.sparse.coo_array(
        (np.ones(int(same.sum())), (at[same, 0], at[same, 1])), shape=(len(faces), len(faces))
    )
    count, group = scipy.sparse.csgraph.connected_components(joined, directed=False)
    ends = group[at]
    sound = ~np.isin(np.arange(count), ends[~same & (ends[:, 0] == ends[:, 1]), 0])
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=count))[:-1])
    labels: dict[tuple[int, int], bool] = {}
    wanted = {(int(a), int(b)) for a, b in np.sort(ends, axis=1) if sound[a] and sound[b]}
    for a, b in sorted(wanted):
        for i, j in _across(members[a], members[b], max_pairs, rng).tolist():
            labels[(min(i, j), max(i, j))] = a == b
    for i, j in np.sort(at, axis=1).tolist():
        labels.pop((i, j), None)
    where = np.array(list(labels), np.int64).reshape(-1, 2)
    return faces[where], np.array(list(labels.values()), np.bool_)


def _across(first: Ids, second: Ids, max_pairs: int, rng: np.random.Generator) -> Ids:
    """Draw at most `max_pairs` pairs of a face of the first group and a face of the second: (n, 2)."""
    one, other = np.meshgrid(first, second, indexing="ij")
    pairs = np.stack([one.ravel(), other.ravel()], axis=1)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    kept: Ids = pairs if len(pairs) <= max_pairs else pairs[rng.choice(len(pairs), max_pairs, replace=False)]
    return kept
