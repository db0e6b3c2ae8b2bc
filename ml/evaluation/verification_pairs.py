"""Pairs of photos for verification, as LFW's `pairs.txt` lists them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.errors import Corrupt
from ml.types import Ids


@dataclass(frozen=True, eq=False)
class VerificationPairs:
    """Labelled pairs. index: (P, 2) int64 indexes of photos; same: (P,) bool."""

    index: Ids = field(default_factory=lambda: np.empty((0, 2), np.int64))
    same: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    @classmethod
    def of(cls, parts: Sequence["VerificationPairs"]) -> "VerificationPairs":
        """Concatenate several sets of pairs."""
        every = [cls(), *parts]
        return cls(np.concatenate([p.index for p in every]), np.concatenate([p.same for p in every]))

    def groups(self) -> Ids:
        """The group of each photo that occurs, in rising order of photos. Photos joined by any pair share a group."""
        photos, at = np.unique(self.index, return_inverse=True)
        first, second = at.reshape(-1, 2).T
        joined = scipy.sparse.coo_array((np.ones(len(first)), (first, second)), shape=(len(photos), len(photos)))
        return scipy.sparse.csgraph.connected_components(joined, directed=False)[1].astype(np.int64)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Fold:
    """A fold of `pairs.txt`. named: every photo that its lines name; missing: those that are not in the list."""

    pairs: VerificationPairs
    named: frozenset[str]
    missing: tuple[str, ...]


def photo(name: str, number: str) -> str:
    """Return the path of a person's photo in LFW."""
    return f"{name}/{name}_{int(number):04d}.jpg"


def read_folds(path: Path, photos: Sequence[str]) -> list[Fold]:
    """Read the folds of `pairs.txt`: `FOLDS<tab>N`, then N lines `name a b` and N lines `name a name b` per fold.

    Pairs with a photo that is not in the list are left out. Raises Corrupt.
    """
    try:
        head, *lines = [row.split("\t") for row in path.read_text("utf-8").splitlines() if row.strip()]
        folds, size = int(head[0]), 2 * int(head[1])
        named = [_pair(row) for row in lines]
    except (OSError, ValueError, IndexError) as error:
        raise Corrupt(f"the pairs {path.name} cannot be read: {error}") from error
    if len(named) != folds * size:
        raise Corrupt(f"{path.name} states {folds} folds of {size} pairs, but contains {len(named)}")
    number_of = {name: i for i, name in enumerate(photos)}
    return [_fold(named[f * size : (f + 1) * size], number_of) for f in range(folds)]


def _pair(fields: list[str]) -> tuple[str, str, bool]:
    if len(fields) == 3:
        return photo(fields[0], fields[1]), photo(fields[0], fields[2]), True
    name, a, other, b = fields
    return photo(name, a), photo(other, b), False


def _fold(named: list[tuple[str, str, bool]], number_of: dict[str, int]) -> Fold:
    kept = [(number_of[a], number_of[b], same) for a, b, same in named if a in number_of and b in number_of]
    every = frozenset(p for a, b, _ in named for p in (a, b))
    pairs = VerificationPairs(
        np.array([k[:2] for k in kept], np.int64).reshape(-1, 2), np.array([k[2] for k in kept], np.bool_)
    )
    return Fold(pairs, every, tuple(sorted(p for p in every if p not in number_of)))
