"""Pairs of faces that are known to be one person, or two."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ml.types import Ids


def _no_pairs() -> Ids:
    return np.empty((0, 2), np.int64)


@dataclass(frozen=True, eq=False)
class PairConstraints:
    """must_link: (M, 2) positions of faces of one person, the surest first; cannot_link: (C, 2) of two people."""

    must_link: Ids = field(default_factory=_no_pairs)
    cannot_link: Ids = field(default_factory=_no_pairs)


def apply_constraints(labels: Ids, constraints: PairConstraints) -> tuple[Ids, Ids, NDArray[np.bool_]]:
    """Join what must be joined. Returns (N,) new cluster numbers without a gap, (P, 2) pairs of them that must stay
    apart, and (M,) which must-links contradict a cannot-link, and were therefore left out.

    labels: (N,) cluster numbers to start from, 0 or above; the first must-link that leads to a contradiction loses.
    A cannot-link inside one of these clusters is ignored.
    """
    _, start = np.unique(labels, return_inverse=True)
    parent = np.arange(int(start.max(initial=-1)) + 1)
    forbidden = _collect_forbidden(start[constraints.cannot_link])
    left_out = np.zeros(len(constraints.must_link), np.bool_)
    for number, pair in enumerate(start[constraints.must_link].tolist()):
        first, second = sorted(_find_root(parent, cluster) for cluster in pair)
        if second in forbidden.get(first, ()):
            left_out[number] = True
        elif first != second:
            parent[second] = first
            for other in forbidden.pop(second, set()):
                forbidden[other].discard(second)
                forbidden[other].add(first)
                forbidden.setdefault(first, set()).add(other)
    roots = np.array([_find_root(parent, cluster) for cluster in range(len(parent))], np.int64)
    _, joined = np.unique(roots[start], return_inverse=True)
    cannot_link = joined[constraints.cannot_link]
    return joined, cannot_link[cannot_link[:, 0] != cannot_link[:, 1]], left_out


def _collect_forbidden(pairs: Ids) -> dict[int, set[int]]:
    forbidden: dict[int, set[int]] = {}
    for first, second in pairs[pairs[:, 0] != pairs[:, 1]].tolist():
        forbidden.setdefault(first, set()).add(second)
        forbidden.setdefault(second, set()).add(first)
    return forbidden


def _find_root(parent: Ids, cluster: int) -> int:
    while parent[cluster] != cluster:
        parent[cluster] = parent[parent[cluster]]
        cluster = int(parent[cluster])
    return cluster
