"""Whom the faces showed that a check of thresholds has compared, so that the next one knows who has lost a face."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from ml.types import Ids


@dataclass(frozen=True, eq=False)
class ComparedFaces:
    """The people of faces, as two arrays, since a million faces may be compared at first, and a few at each change.

    pks: (n,) of the faces, rising; people: (n,) whom they showed; later: face -> person, of those that came since
    """

    pks: Ids
    people: Ids
    later: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, faces: Mapping[int, int]) -> Self:
        """faces: face -> person"""
        pks = np.fromiter(faces.keys(), np.int64, len(faces))
        people, order = np.fromiter(faces.values(), np.int64, len(faces)), np.argsort(pks)
        return cls(pks[order], people[order])

    def add(self, faces: Mapping[int, int]) -> Self:
        """Return them with more faces, or with other people of the same ones. faces: face -> person"""
        return replace(self, later={**self.later, **faces})

    def find_people(self, pks: Ids) -> frozenset[int]:
        """Return whom those of (n,) faces showed that were compared."""
        later = {self.later[pk] for pk in pks.tolist() if pk in self.later}
        others = pks[[pk not in self.later for pk in pks.tolist()]] if self.later else pks
        return frozenset(later).union(self.people[np.isin(self.pks, others)].tolist())
