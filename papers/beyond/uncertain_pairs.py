"""Choose the pairs of which a model is least sure: the rule by which the service suggested pairs until November 2026.

Kept to compare `ml.active_learning` with. Uncertainty sampling (Settles, "Active Learning Literature Survey", 2009,
section 3.1) among near neighbours, since two random faces are almost never of one person.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml.calibration import Calibration
from ml.distances import Distance
from ml.evaluation.verification import best_threshold
from ml.types import Ids, Rows

NEIGHBOURS_PER_FACE = 10
MAX_PAIRS_PER_FACE = 2
NAMED_PAIR_PENALTY = 0.25
"""Added to the distance from even odds (0 to 0.5) of a pair whose two people are both known already."""
EXPECTED_SAME_SHARE = 0.1
"""Assumed share of neighbouring pairs that show one person, before any pair is labelled."""
MAX_ANSWERS = 2000
"""Labels that the rule reads, drawn at random: the latest alone would only reflect the latest suggestions."""
SAMPLE_FACES = 3000
"""Faces among which one request looks for pairs; all distances between them are computed."""


class LabelledDistances(NamedTuple):
    """Labelled pairs: (L,) distance under the model, (L,) whether both faces are of one person."""

    distances: NDArray[np.float64]
    same: NDArray[np.bool_]


def choose_uncertain_pairs(
    rows: Rows,
    subjects: Ids,
    metric: Distance,
    calibration: Calibration | None,
    answers: LabelledDistances,
    labelled: Collection[tuple[int, int]],
    limit: int,
) -> tuple[Ids, NDArray[np.float32]]:
    """Choose at most `limit` pairs of faces, the most uncertain first.

    rows: (N, d) embeddings; subjects: (N,) person of each face, -1 where unknown; calibration: fitted on people the
    model did not learn from, None where there is none; answers: labels given so far; labelled: index pairs, the
    smaller index first, that are not chosen again.
    Returns (P, 2) row indices, the smaller first, and the (P,) distance of each pair.
    """
    pairs, distances = _find_candidates(rows, subjects, metric)
    if not len(pairs):
        return pairs, distances
    named = (subjects[pairs] >= 0).all(1)
    if calibration is not None:
        certainty = _measure_from_even_odds(calibration.probability(distances.astype(np.float64)), answers)
    else:
        same = subjects[pairs[:, 0]] == subjects[pairs[:, 1]]
        known = LabelledDistances(
            np.concatenate([distances[named], answers.distances]), np.concatenate([same[named], answers.same])
        )
        certainty = _measure_from_threshold(distances, known)
    ranking = np.argsort(certainty + NAMED_PAIR_PENALTY * named, kind="stable")
    order = (k for k in ranking if (int(pairs[k, 0]), int(pairs[k, 1])) not in labelled)
    chosen = np.array(list(_spread(subjects, pairs, order, limit)), np.int64)
    return pairs[chosen], distances[chosen]


def _find_candidates(rows: Rows, subjects: Ids, metric: Distance) -> tuple[Ids, NDArray[np.float32]]:
    """Nearest neighbours, and pairs of faces of one subject, which may be far apart.

    Returns (P, 2) row indices, the smaller first, and the (P,) distances.
    """
    if len(rows) < 2:
        return np.empty((0, 2), np.int64), np.empty(0, np.float32)
    distances = metric.distances(rows, rows)
    np.fill_diagonal(distances, np.inf)
    count = min(NEIGHBOURS_PER_FACE, len(distances) - 1)
    nearest = np.argpartition(distances, count - 1, axis=1)[:, :count]
    first = np.repeat(np.arange(len(distances)), count)
    by_subject = np.argsort(subjects, kind="stable")
    within = np.stack([by_subject[:-1], by_subject[1:]], 1)
    within = within[(subjects[within[:, 0]] >= 0) & (subjects[within[:, 0]] == subjects[within[:, 1]])]
    pairs = np.unique(np.sort(np.concatenate([np.stack([first, nearest.ravel()], 1), within]), axis=1), axis=0)
    return pairs, distances[pairs[:, 0], pairs[:, 1]]


def _measure_from_even_odds(probability: NDArray[np.float64], answers: LabelledDistances) -> NDArray[np.float64]:
    """(P,) how far each probability lies from 0.5, under the prior that the answers show.

    probability: (P,) of one person, at even prior odds. Where few of the answers were "same" nearer pairs are chosen,
    until about half are: among all pairs "same" is rare, and most is learned from it.
    """
    prior = (answers.same.sum() + 1) / (len(answers.same) + 2)
    posterior = prior * probability / (prior * probability + (1 - prior) * (1 - probability))
    return np.asarray(np.abs(posterior - 0.5), np.float64)


def _measure_from_threshold(distances: NDArray[np.float32], known: LabelledDistances) -> NDArray[np.float64]:
    """(P,) how far each distance lies from the threshold that separates the known pairs best, in standard deviations.

    Where the known pairs are all of one kind, the threshold is the EXPECTED_SAME_SHARE quantile of the distances.
    """
    both_kinds = known.same.any() and not known.same.all()
    threshold = (
        best_threshold(known.distances, known.same) if both_kinds else np.quantile(distances, EXPECTED_SAME_SHARE)
    )
    return np.asarray(np.abs(distances - threshold) / (np.std(distances) or 1.0), np.float64)


def _spread(subjects: Ids, pairs: Ids, order: Iterator[np.int64], limit: int) -> Iterator[np.int64]:
    """The first pairs in order, each face at most MAX_PAIRS_PER_FACE times and each pair of people once."""
    uses: Counter[int] = Counter()
    seen_people: set[tuple[int, int]] = set()
    for k in order:
        first, second = (int(i) for i in pairs[k])
        low, high = sorted((int(subjects[first]), int(subjects[second])))
        if max(uses[first], uses[second]) >= MAX_PAIRS_PER_FACE or (low >= 0 and (low, high) in seen_people):
            continue
        uses.update((first, second))
        seen_people.add((low, high))
        yield k
        limit -= 1
        if not limit:
            return
