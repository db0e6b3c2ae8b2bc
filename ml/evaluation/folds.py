"""Verification over folds: each fold's pairs are judged at the threshold that is best on pairs of other folds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ml.errors import WrongShape
from ml.evaluation.intervals import RESAMPLES, Interval, bootstrap_pairs, over_draws
from ml.evaluation.separation import Scored, Separation, separation
from ml.evaluation.verification import Distances, Folds, best_threshold, over_folds
from ml.evaluation.verification_pairs import VerificationPairs
from ml.types import Ids

Apart = Callable[[Ids], Distances]
"""(P, 2) places of photos -> (P,) distances under one model."""
Judge = Callable[[int], tuple[VerificationPairs, Distances]]
"""A fold -> the pairs that its threshold is chosen on, and their distances."""


@dataclass(frozen=True)
class Verification:
    """What the folds say; rates 0..1.

    accuracies, thresholds: of each fold; accuracy: their mean, SD and SE, as LFW's tables print them
    people: the mean accuracy with an interval that resamples people, the thresholds as they are
    student: the same with Student's interval over folds; a little narrow, since the folds' training sides overlap
    separation: mean over folds of AUC, EER, FNMR at FMR, dispersion: no threshold of its own, so no training side
    """

    pairs: int
    accuracies: tuple[float, ...]
    thresholds: tuple[float, ...]
    accuracy: Folds
    people: Interval
    student: Interval
    separation: Separation


def verify(
    folds: Sequence[VerificationPairs],
    people: Ids,
    apart: Callable[[int], Apart],
    *,
    judge: Judge | None = None,
    told: Callable[[Distances], Distances] = np.asarray,
    resamples: int = RESAMPLES,
) -> Verification:
    """people: (N,) whose each photo is, -1 unknown; apart(f): distances under the model that may judge fold f; told: as
    the dispersion tells them (`Distance.display_distance`), rising with them.

    judge(f): the pairs that fold f's threshold is chosen on, and their distances; without it, those of the other folds
    under fold f's own model. Pairs that a model was fitted on look easier than they are, and a threshold chosen on them
    is too tight: a model that learns should be told its threshold by one that saw neither them nor fold f (`partner`).

    A model that was fitted must not have seen fold f.
    Raises WrongShape with fewer than two folds, or one without pairs of both kinds.
    """
    if len(folds) < 2 or not all(f.same.any() and not f.same.all() for f in folds):
        raise WrongShape("folds", "two or more, each with pairs of both kinds", len(folds))
    judged = [_judge(f, folds, apart(f), judge) for f in range(len(folds))]
    distances, thresholds = [d for d, _ in judged], [t for _, t in judged]
    right = [(d <= t) == f.same for f, d, t in zip(folds, distances, thresholds, strict=True)]
    owners = [_owners(f, people) for f in folds]
    accuracies = np.array([r.mean() for r in right])
    sides = [
        [Scored(told(d[f.same == same]), o[f.same == same]) for f, d, o in zip(folds, distances, owners, strict=True)]
        for same in (True, False)
    ]
    return Verification(
        sum(len(f.same) for f in folds),
        tuple(accuracies.tolist()),
        tuple(thresholds),
        over_folds(accuracies),
        bootstrap_pairs(right, owners, resamples=resamples),
        over_draws(accuracies),
        separation(*sides, resamples=resamples),
    )


def partner(fold: int, folds: int) -> int:
    """Which fold gives it its threshold: of two neighbours each the other, an odd last one has the one before."""
    return fold ^ 1 if fold ^ 1 < folds else fold - 1


def _judge(
    at: int, folds: Sequence[VerificationPairs], distances_of: Apart, judge: Judge | None
) -> tuple[Distances, float]:
    """The distances of one fold's pairs, and their threshold."""
    if judge is not None:
        pairs, distances = judge(at)
        return distances_of(folds[at].index), best_threshold(distances, pairs.same)
    learned = VerificationPairs.of([f for i, f in enumerate(folds) if i != at])
    return distances_of(folds[at].index), best_threshold(distances_of(learned.index), learned.same)


def _owners(fold: VerificationPairs, people: Ids) -> Ids:
    """(P, 2) people; a photo of nobody known stands for itself."""
    known = people[fold.index]
    return np.where(known < 0, -1 - fold.index, known)
