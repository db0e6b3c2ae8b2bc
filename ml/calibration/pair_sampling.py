"""Draw pairs of faces to calibrate with: genuine pairs (one person) and impostor pairs (two people)."""

import numpy as np
from numpy.typing import NDArray

from ml.calibration.impostor_distances import Distances
from ml.distances import EUCLIDEAN, Distance
from ml.types import Ids, Rows

MAX_FACES_PER_PERSON = 10
"""In impostor pairs. Without a limit, one person with hundreds of photos would dominate the distribution."""


def sample_impostors(rows: Rows, people: Ids, n: int, seed: int, metric: Distance = EUCLIDEAN) -> Distances:
    """Return the (P,) distances of the pairs that `draw_impostor_pairs` draws among (N, d) rows."""
    return metric.pair_distances(rows, draw_impostor_pairs(people, n, seed))


def draw_impostor_pairs(people: Ids, n: int, seed: int) -> Ids:
    """Draw at most n distinct pairs of faces of different people, all pairs equally likely: (P, 2) row numbers.

    people: (N,) numbers; -1 is unknown and left out. At most `MAX_FACES_PER_PERSON` faces of a person are used.
    """
    rng = np.random.default_rng(seed)
    known = choose_faces(people, rng)
    if len(known) < 2:
        return np.empty((0, 2), np.int64)
    first, second = rng.choice(known, (2, 2 * n))
    differ = people[first] != people[second]
    return _unique(first[differ], second[differ], len(people), n, rng)


def draw_pairs_with(is_chosen: NDArray[np.bool_], people: Ids, n: int, seed: int) -> Ids:
    """Draw at most n distinct pairs of a chosen face and a face of somebody else, all equally likely: (P, 2).

    people: see `draw_impostor_pairs`; is_chosen: (N,). Of two chosen faces, each may be the first, so that a stranger
    like a chosen one meets everybody by the share of the faces.
    """
    rng = np.random.default_rng(seed)
    known = choose_faces(people, rng)
    chosen = known[is_chosen[known]]
    if not len(chosen):
        return np.empty((0, 2), np.int64)
    first, second = rng.choice(chosen, 2 * n), rng.choice(known, 2 * n)
    differ = people[first] != people[second]
    return _choose_codes(first[differ] * len(people) + second[differ], len(people), n, rng)


def draw_pairs_between(first: int, second: int, n: int, seed: int) -> Ids:
    """Draw at most n distinct pairs of one of `first` rows and one of the `second` rows after them: (P, 2)."""
    rng = np.random.default_rng(seed)
    if first * second <= n:
        return np.stack(np.meshgrid(np.arange(first), first + np.arange(second)), axis=-1).reshape(-1, 2)
    return _unique(rng.integers(0, first, 2 * n), first + rng.integers(0, second, 2 * n), first + second, n, rng)


def choose_faces(people: Ids, rng: np.random.Generator, limit: int = MAX_FACES_PER_PERSON) -> Ids:
    """Choose at most `limit` faces of each person at random: (K,) row numbers, rising.

    people: (N,) numbers; -1 is unknown and left out
    """
    known = np.flatnonzero(people >= 0)
    if np.unique(people[known], return_counts=True)[1].max(initial=0) <= limit:
        return known
    order = rng.permutation(known)
    order = order[np.argsort(people[order], kind="stable")]
    rank_in_person = np.arange(len(order)) - np.searchsorted(people[order], people[order])
    return np.sort(order[rank_in_person < limit])


def sample_genuine(rows: Rows, people: Ids, n: int, seed: int, metric: Distance = EUCLIDEAN) -> Distances:
    """Return the (P,) distances of at most n distinct pairs of faces of one person, drawn among (N, d) rows.

    The person is drawn first, all equally likely, so that one with a thousand photos does not dominate.
    people: (N,) numbers; -1 is unknown and left out
    """
    order, rng = np.argsort(people, kind="stable"), np.random.default_rng(seed)
    numbers, start, photos = np.unique(people[order], return_index=True, return_counts=True)
    several = np.flatnonzero((numbers >= 0) & (photos > 1))
    if not len(several):
        return np.empty(0)
    person = rng.choice(several, n)
    one = rng.integers(0, photos[person])
    other = (one + rng.integers(1, photos[person])) % photos[person]
    first, second = order[start[person] + one], order[start[person] + other]
    return metric.pair_distances(rows, _unique(first, second, len(rows), n, rng))


def _unique(first: Ids, second: Ids, faces: int, n: int, rng: np.random.Generator) -> Ids:
    """At most n of the distinct unordered pairs among these, in random order: (P, 2)."""
    return _choose_codes(np.minimum(first, second) * faces + np.maximum(first, second), faces, n, rng)


def _choose_codes(codes: Ids, faces: int, n: int, rng: np.random.Generator) -> Ids:
    """At most n of the distinct pairs with these codes, first x faces + second, in random order: (P, 2)."""
    codes = np.sort(codes)  # np.unique takes ten times as long
    codes = rng.permutation(codes[np.diff(codes, prepend=-1) > 0])[:n]
    return np.stack(np.divmod(codes, faces), axis=1)
