"""Choose the pairs of faces to ask people about: those from which a training is expected to learn most.

A training learns chiefly from how the faces of one person differ: a "same" pair with the difference u adds u u^T to the
covariance within people, a matrix whose squared norm is |u|^4. The value of a question is therefore the probability of
the answer "same", times the squared distance: near pairs are often the same and teach little, far pairs would teach
much and are never the same. The probability follows from the answers so far, so that questions move to the distance
at which both answers occur.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.active_learning.candidate_pairs import CandidatePairs, find_candidates
from ml.active_learning.face_groups import FaceGroups, PairAnswers
from ml.active_learning.same_probability import SameProbability
from ml.distances import Distance
from ml.types import Ids, Rows

MAX_SUGGESTIONS = 200
"""Pairs that one request may ask for."""
MIN_ANSWERS_PER_KIND = 10
"""While fewer answers are "same", or fewer are "not the same", half of the questions look for that kind."""
DIFFERENT_PROBABILITY = 0.1
"""Questions that look for the answer "not the same" are those with about this probability of "same"."""
MAX_PAIRS_PER_FACE = 2

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PairSuggestions:
    """Pairs to ask about, the most valuable first.

    pairs: (P, 2) row numbers, the smaller first; distances: (P,) of the metric
    probabilities: (P,) estimated probability of the answer "same"
    values: (P,) what the answer is expected to teach: the probability times the squared distance; only ratios matter
    """

    pairs: Ids
    distances: Floats
    probabilities: Floats
    values: Floats


def choose_pairs(rows: Rows, subjects: Ids, metric: Distance, answers: PairAnswers, limit: int) -> PairSuggestions:
    """Choose at most `limit` pairs that no answer decides, in the order in which they should be asked.

    rows: (N, d) embeddings; subjects: (N,) person of each face, -1 where unknown; answers: (L, 2) pairs of these rows

    Pairs of two named faces come last. Each group of faces that are known to be one person occurs once, unless too few
    pairs remain; no face occurs more than MAX_PAIRS_PER_FACE times, and no two groups more than once.
    """
    return select_pairs(find_candidates(rows, metric, answers.pairs), subjects, answers, limit)


def select_pairs(candidates: CandidatePairs, subjects: Ids, answers: PairAnswers, limit: int) -> PairSuggestions:
    """Choose among candidates, which must include the answered pairs. subjects: (N,); see `choose_pairs`"""
    if not len(candidates.pairs):
        nothing = np.empty(0)
        return PairSuggestions(candidates.pairs, nothing, nothing, nothing)
    probabilities = estimate_probabilities(candidates, subjects, answers)
    values = probabilities * candidates.excess**2
    groups = FaceGroups.join(len(subjects), answers, subjects)
    answered = FaceGroups.join(len(subjects), answers)
    is_open = ~answered.are_decided(candidates.pairs)
    is_named = (subjects[candidates.pairs] >= 0).all(axis=1)
    ranking = np.concatenate(
        [
            _rank(probabilities, values, answers, np.flatnonzero(is_open & ~is_named)),
            _rank(probabilities, values, answers, np.flatnonzero(is_open & is_named)),
        ]
    )
    chosen = np.array(_spread(candidates.pairs, groups.numbers, ranking, limit), np.int64)
    return PairSuggestions(
        candidates.pairs[chosen], candidates.distances[chosen], probabilities[chosen], values[chosen]
    )


def estimate_probabilities(candidates: CandidatePairs, subjects: Ids, answers: PairAnswers) -> Floats:
    """Return (P,) the probability that each candidate shows one person.

    subjects: (N,); pairs of named faces count as answers, but no more of them than MIN_ANSWERS_PER_KIND of each kind
    once there are real answers.
    """
    keys = _encode(candidates.pairs)
    at = np.searchsorted(keys, _encode(np.sort(answers.pairs, axis=1)))
    named = np.flatnonzero((subjects[candidates.pairs] >= 0).all(axis=1))
    alike = subjects[candidates.pairs[named, 0]] == subjects[candidates.pairs[named, 1]]
    kept = np.concatenate([_thin(np.flatnonzero(alike)), _thin(np.flatnonzero(~alike))])
    scores = candidates.scores[np.concatenate([at, named[kept]])]
    model = SameProbability.fit(scores, np.concatenate([answers.same, alike[kept]]), candidates.scores)
    return model.predict(candidates.scores)


def _thin(positions: Ids) -> Ids:
    """Return at most MIN_ANSWERS_PER_KIND of the positions, evenly spaced."""
    if len(positions) <= MIN_ANSWERS_PER_KIND:
        return positions
    return positions[np.linspace(0, len(positions) - 1, MIN_ANSWERS_PER_KIND).astype(np.int64)]


def _encode(pairs: Ids) -> Ids:
    """Return (P,) one number for each of (P, 2) pairs, in the order in which `np.unique` sorts pairs."""
    return (pairs[:, 0] << 32) + pairs[:, 1]


def _rank(probabilities: Floats, values: Floats, answers: PairAnswers, positions: Ids) -> Ids:
    """Order candidates by their value; while a kind of answer is scarce, every second one is likely of that kind."""
    by_value = positions[np.argsort(-values[positions], kind="stable")]
    same_count = int(answers.same.sum())
    different_count = len(answers) - same_count
    if min(same_count, different_count) >= MIN_ANSWERS_PER_KIND:
        return by_value
    wanted = 1.0 if same_count <= different_count else DIFFERENT_PROBABILITY
    if not len(answers):
        wanted = DIFFERENT_PROBABILITY
    of_kind = positions[np.argsort(np.abs(probabilities[positions] - wanted), kind="stable")]
    both = np.stack([by_value, of_kind], axis=1).ravel()
    return both[np.sort(np.unique(both, return_index=True)[1])]


def _spread(pairs: Ids, groups: Ids, ranking: Ids, limit: int) -> list[int]:
    """Choose candidates in order, first with each group once, then with each face at most MAX_PAIRS_PER_FACE times."""
    faces: Counter[int] = Counter()
    used_groups: set[int] = set()
    used_pairs: set[tuple[int, int]] = set()
    chosen: list[int] = []
    for is_strict in (True, False):
        for k in _iterate_unused(pairs, groups, ranking, used_pairs):
            if len(chosen) == limit:
                return chosen
            ends, people = pairs[k].tolist(), groups[pairs[k]].tolist()
            if is_strict and not used_groups.isdisjoint(people):
                continue
            if max(faces[face] for face in ends) >= MAX_PAIRS_PER_FACE:
                continue
            faces.update(ends)
            used_groups.update(people)
            used_pairs.add((min(people), max(people)))
            chosen.append(k)
    return chosen


def _iterate_unused(pairs: Ids, groups: Ids, ranking: Ids, used_pairs: set[tuple[int, int]]) -> Iterator[int]:
    """Iterate over the ranking, without pairs of two groups that were used together."""
    for k in ranking.tolist():
        first, second = sorted(groups[pairs[k]].tolist())
        if (first, second) not in used_pairs:
            yield k
