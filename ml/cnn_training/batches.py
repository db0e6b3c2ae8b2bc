"""Which photos meet in a step: told by the step's number alone, so that a resumed training goes on where it stood."""

from functools import lru_cache

import numpy as np

from ml.types import Ids


@lru_cache(maxsize=2)
def _order(seed: int, passes: int, n: int) -> Ids:
    return np.random.default_rng([seed, passes]).permutation(n)


def _part(seed: int, step: int, n: int, whole: int) -> Ids:
    """(whole,) of n: each pass in an order of its own, what does not fill a step left for another pass."""
    passes, at = divmod(step, max(1, n // whole))
    return np.asarray(np.resize(_order(seed, passes, n), (at + 1) * whole)[at * whole :])


def evenly(n: int, batch: int, *, seed: int, step: int, rank: int = 0, size: int = 1) -> Ids:
    """(batch,) places of n photos, each as often as another, apart from those of the other `size` processes."""
    return _part(seed, step, n, batch * size)[rank::size]


def grouped(people: Ids, batch: int, faces: int, *, seed: int, step: int, rank: int = 0, size: int = 1) -> Ids:
    """(batch,) places of photos: `faces` of a person side by side, people with two photos or more, each as often.

    Who has fewer comes with the same ones again, which are changed each on its own. people: (T,).
    """
    by_person = np.argsort(people, kind="stable")
    _, first, counts = np.unique(people[by_person], return_index=True, return_counts=True)
    first, counts = first[counts > 1], counts[counts > 1]
    chosen = _part(seed, step, len(first), max(1, batch // faces) * size)[rank::size]
    draw = np.random.default_rng([seed, step, rank])
    photos = [np.resize(draw.permutation(counts[who]), faces) + first[who] for who in chosen]
    return np.asarray(by_person[np.concatenate(photos)])
