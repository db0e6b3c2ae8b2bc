"""What the answers so far decide: which faces are one person, and which groups of faces are different people."""

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.types import Ids


@dataclass(frozen=True, eq=False)
class PairAnswers:
    """Answered pairs. pairs: (L, 2) row numbers; same: (L,) whether both faces are of one person"""

    pairs: Ids
    same: NDArray[np.bool_]

    @classmethod
    def empty(cls) -> "PairAnswers":
        """Return no answers."""
        return cls(np.empty((0, 2), np.int64), np.empty(0, np.bool_))

    def __len__(self) -> int:
        return len(self.pairs)


@dataclass(frozen=True, eq=False)
class FaceGroups:
    """Groups of faces that are one person, and pairs of groups that are different people.

    numbers: (N,) group of each face; sizes: (N,) faces in the group of each face
    different: (D,) keys of pairs of groups, sorted; see `_make_keys`
    """

    numbers: Ids
    sizes: Ids
    different: Ids

    @classmethod
    def join(cls, count: int, answers: PairAnswers, subjects: Ids | None = None) -> "FaceGroups":
        """Join the faces of "same" answers, and those of one subject, into groups.

        count: N, the number of faces; subjects: (N,) person of each face, -1 where unknown
        """
        first, second = answers.pairs[answers.same].T
        if subjects is not None:
            order = np.argsort(subjects, kind="stable")
            alike = (subjects[order[1:]] == subjects[order[:-1]]) & (subjects[order[1:]] >= 0)
            first = np.concatenate([first, order[:-1][alike]])
            second = np.concatenate([second, order[1:][alike]])
        graph = scipy.sparse.coo_array((np.ones(len(first), np.int8), (first, second)), shape=(count, count))
        numbers = scipy.sparse.csgraph.connected_components(graph, directed=False)[1].astype(np.int64)
        different = np.unique(_make_keys(numbers, answers.pairs[~answers.same]))
        return cls(numbers, np.bincount(numbers)[numbers].astype(np.int64), different)

    def are_decided(self, pairs: Ids) -> NDArray[np.bool_]:
        """Return (P,) which of (P, 2) pairs are answered, or follow from answers."""
        is_joined = self.numbers[pairs[:, 0]] == self.numbers[pairs[:, 1]]
        decided: NDArray[np.bool_] = is_joined | np.isin(_make_keys(self.numbers, pairs), self.different)
        return decided


def _make_keys(numbers: Ids, pairs: Ids) -> Ids:
    """Return (P,) one number for the two groups of each of (P, 2) pairs of faces, whatever their order."""
    ends = np.sort(numbers[pairs], axis=1).reshape(-1, 2)
    return (ends[:, 0] << 32) + ends[:, 1]
