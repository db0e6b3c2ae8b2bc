"""Measure an embedder on the people of one fold: average precision, and true accepts at a false-match rate."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import Embedder, TaskData
from ml.metric_learning.selection.people_folds import find_matched_faces, locate_faces, number_people
from ml.types import Ids, Rows

MAX_QUERIES = 400
MAX_QUERIES_PER_PERSON = 5
MAX_GALLERY_FACES = 4000
FALSE_MATCH_RATE = 1e-3
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FoldScores:
    """What an embedder reaches for each of the P people of a fold who can be searched for.

    precision: (P,) mean average precision of the person's searches among the fold's faces
    accepted: (P,) share of the person's pairs below the distance at which a share FALSE_MATCH_RATE of the fold's pairs
        of different people lies
    """

    precision: Values
    accepted: Values


@dataclass(frozen=True, eq=False)
class FoldValidation:
    """The searches of one fold.

    faces: (G,) rows of the gallery; queries: (Q,) positions in it; people: (Q,) person of each query
    relevant: (Q, G) faces known to be the same as the query; compared: (Q, G) all faces but the query itself
    """

    faces: Ids
    queries: Ids
    people: Ids
    relevant: NDArray[np.bool_]
    compared: NDArray[np.bool_]

    @classmethod
    def draw(cls, fold: TaskData, seed: int) -> "FoldValidation":
        """Draw the searches of a fold. Faces that are not known to be the same count as different."""
        rng, people, matched = np.random.default_rng((seed, 7)), number_people(fold), find_matched_faces(fold)
        queries = _limit_per_person(rng.permutation(np.flatnonzero(matched)), people)[:MAX_QUERIES]
        others = rng.permutation(np.setdiff1d(np.arange(len(fold.faces)), queries))
        others = others[np.argsort(~matched[others], kind="stable")]
        gallery = np.sort(np.concatenate([queries, others[: max(0, MAX_GALLERY_FACES - len(queries))]]))
        positions = np.searchsorted(gallery, queries)
        compared = np.ones((len(queries), len(gallery)), np.bool_)
        compared[np.arange(len(queries)), positions] = False
        relevant = _find_relevant(fold, queries, gallery) & compared
        kept = relevant.any(axis=1)
        return cls(fold.faces[gallery], positions[kept], people[queries][kept], relevant[kept], compared[kept])

    def score(self, embedder: Embedder, rows: Rows, task: str) -> FoldScores:
        """Score an embedder by these searches. rows: (N, D) of the training set"""
        z = embedder.embed(rows[self.faces], task)
        distances = embedder.metric.distances(z[self.queries], z)
        precision = score_precisions(np.where(self.compared, distances, np.inf), self.relevant)
        impostors = distances[self.compared & ~self.relevant]
        allowed = min(int(FALSE_MATCH_RATE * len(impostors)), len(impostors) - 1)
        limit = np.partition(impostors, allowed)[allowed] if len(impostors) else np.inf
        accepted = ((distances <= limit) & self.relevant).sum(1) / self.relevant.sum(1)
        return FoldScores(self._average_by_person(precision), self._average_by_person(accepted))

    def _average_by_person(self, values: Values) -> Values:
        _, member = np.unique(self.people, return_inverse=True)
        means: Values = np.bincount(member, values) / np.bincount(member)
        return means


def _find_relevant(fold: TaskData, queries: Ids, gallery: Ids) -> NDArray[np.bool_]:
    """Return which faces are known to be the same: (Q, G). Labelled pairs override what follows from values."""
    with np.errstate(invalid="ignore"):
        relevant = np.abs(fold.values[queries][:, None] - fold.values[gallery]) <= fold.tolerance
    row, column = np.full(len(fold.faces), -1), np.full(len(fold.faces), -1)
    row[queries], column[gallery] = np.arange(len(queries)), np.arange(len(gallery))
    ends = locate_faces(fold.faces, fold.pairs)
    for first, second in (ends.T, ends.T[::-1]):
        used = (row[first] >= 0) & (column[second] >= 0)
        relevant[row[first[used]], column[second[used]]] = fold.same[used]
    return relevant


def _limit_per_person(queries: Ids, people: Ids) -> Ids:
    """Return the first queries of each person, at most MAX_QUERIES_PER_PERSON, first those that come first."""
    order = np.argsort(people[queries], kind="stable")
    numbers = people[queries][order]
    turn = np.empty(len(queries), np.int64)
    turn[order] = np.arange(len(queries)) - np.searchsorted(numbers, numbers, "left")
    chosen: Ids = queries[np.argsort(turn, kind="stable")][: int((turn < MAX_QUERIES_PER_PERSON).sum())]
    return chosen


def score_precisions(distances: NDArray[np.floating[Any]], relevant: NDArray[np.bool_]) -> Values:
    """Return the (Q,) average precisions of (Q, G) distances; every search must have a relevant face."""
    order = np.argsort(distances, axis=1, kind="stable")
    hits = np.take_along_axis(relevant, order, axis=1)
    precision = hits.cumsum(1) / np.arange(1, hits.shape[1] + 1)
    means: Values = (precision * hits).sum(1) / hits.sum(1)
    return means
