"""What labelled pairs imply where "the same" is an equivalence: a same as b and b same as c makes a same as c."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ml.types import Ids

MOST = 200
"""Implied pairs that one labelled pair may bring: groups of many faces must not drown all others."""


def implied(
    pairs: Ids, same: NDArray[np.bool_], rng: np.random.Generator, most: int = MOST
) -> tuple[Ids, NDArray[np.bool_]]:
    """Pairs that nobody labelled and that follow from those labelled, each once.

    Faces that are joined by "same" form a group: all of its pairs are the same. One "not the same" between two groups
    holds for every pair between them. A group in which a "not the same" lies contradicts itself and implies nothing.
    pairs: (P, 2) face numbers; same: (P,). Returns (Q, 2), the smaller number first, and (Q,).
    """
    faces, at = np.unique(pairs, return_inverse=True)
    at = at.reshape(-1, 2)
    joined = coo_array((np.ones(int(same.sum())), (at[same, 0], at[same, 1])), shape=(len(faces), len(faces)))
    count, group = connected_components(joined, directed=False)
    ends = group[at]
    sound = ~np.isin(np.arange(count), ends[~same & (ends[:, 0] == ends[:, 1]), 0])
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=count))[:-1])
    labels: dict[tuple[int, int], bool] = {}
    wanted = {(int(a), int(b)) for a, b in np.sort(ends, axis=1) if sound[a] and sound[b]}
    for a, b in sorted(wanted):
        for i, j in _across(members[a], members[b], most, rng).tolist():
            labels[(min(i, j), max(i, j))] = a == b
    for i, j in np.sort(at, axis=1).tolist():
        labels.pop((i, j), None)
    where = np.array(list(labels), np.int64).reshape(-1, 2)
    return faces[where], np.array(list(labels.values()), np.bool_)


def _across(first: Ids, second: Ids, most: int, rng: np.random.Generator) -> Ids:
    """(n, 2) pairs of a face of the one and a face of the other, at most so many, by chance."""
    one, other = np.meshgrid(first, second, indexing="ij")
    pairs = np.stack([one.ravel(), other.ravel()], axis=1)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    kept: Ids = pairs if len(pairs) <= most else pairs[rng.choice(len(pairs), most, replace=False)]
    return kept
