"""Choose the photos of each step. They depend only on the seed and the step, so a resumed training repeats nothing."""

from functools import lru_cache

import numpy as np

from ml.types import Ids


@lru_cache(maxsize=2)
def _shuffle(seed: int, epoch: int, n: int) -> Ids:
    return np.random.default_rng([seed, epoch]).permutation(n)


def _draw_slice(seed: int, step: int, n: int, total: int) -> Ids:
    """Return the (total,) indexes out of n for a step. Each epoch has its own order; an incomplete step is left out."""
    epoch, position = divmod(step, max(1, n // total))
    return np.asarray(np.resize(_shuffle(seed, epoch, n), (position + 1) * total)[position * total :])


def draw_evenly(n: int, batch: int, *, seed: int, step: int, rank: int = 0, size: int = 1) -> Ids:
    """Draw (batch,) indexes of n photos, each equally often, and different ones in each of the `size` processes."""
    return _draw_slice(seed, step, n, batch * size)[rank::size]


def draw_by_person(
    people: Ids, batch: int, photos_per_person: int, *, seed: int, step: int, rank: int = 0, size: int = 1
) -> Ids:
    """Draw (batch,) indexes of photos, `photos_per_person` consecutive ones of each person.

    Only people with two or more photos are drawn, all equally often. If a person has too few photos, they repeat; each
    repetition is augmented differently. people: (T,) person of each photo.
    """
    by_person = np.argsort(people, kind="stable")
    _, first, counts = np.unique(people[by_person], return_index=True, return_counts=True)
    first, counts = first[counts > 1], counts[counts > 1]
    chosen = _draw_slice(seed, step, len(first), max(1, batch // photos_per_person) * size)[rank::size]
    rng = np.random.default_rng([seed, step, rank])
    photos = [np.resize(rng.permutation(counts[person]), photos_per_person) + first[person] for person in chosen]
    return np.asarray(by_person[np.concatenate(photos)])
