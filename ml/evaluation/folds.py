"""Verification over folds: decide each fold's pairs at a threshold chosen on pairs of other folds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ml.errors import WrongShape
from ml.evaluation.intervals import RESAMPLES, Interval, bootstrap_pairs, over_draws
from ml.evaluation.separation import Scored, Separation, separation
from ml.evaluation.verification import Distances, Folds, best_threshold, over_folds
from ml.evaluation.verification_pairs import VerificationPairs
from ml.types import Ids

PairDistances = Callable[[Ids], Distances]
"""Maps (P, 2) photo indexes to their (P,) distances under one model."""
Judge = Callable[[int], tuple[VerificationPairs, Distances]]
"""Maps a fold to the pairs on which its threshold is chosen, and their distances."""


@dataclass(frozen=True)
class Verification:
    """The result of a verification over folds. Rates are 0..1.

    accuracies, thresholds: one value per fold; accuracy: mean, SD and SE of the accuracies, as LFW's tables print them
    people: the mean accuracy with an interval that resamples people and keeps the thresholds
    student: the mean accuracy with Student's interval over folds. It is slightly too narrow, because the training sets
        of the folds overlap.
    separation: AUC, EER, FNMR at FMR and dispersion, averaged over folds. These need no threshold from other folds.
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
    distances_by_fold: Callable[[int], PairDistances],
    *,
    judge: Judge | None = None,
    displayed: Callable[[Distances], Distances] = np.asarray,
    resamples: int = RESAMPLES,
) -> Verification:
    """Measure the verification accuracy over folds.

    people: (N,) person of each photo, -1 if unknown
    distances_by_fold: returns the distances under the model for fold f. A fitted model must not have seen fold f.
    judge: returns the pairs on which the threshold of fold f is chosen, and their distances. By default these are the
        pairs of all other folds under the model for fold f. Pairs that a model was fitted on look easier than they are,
        so a threshold chosen on them is too strict. For fitted models, pass the pairs of `threshold_fold(f)` under a
        model that saw neither that fold nor fold f.
    displayed: converts distances to the unit of the dispersion (`Distance.display_distance`); must be increasing
    Raises WrongShape if there are fewer than two folds, or if a fold lacks pairs of either kind.
    """
    if len(folds) < 2 or not all(f.same.any() and not f.same.all() for f in folds):
        raise WrongShape("folds", "two or more, each with pairs of both kinds", len(folds))
    judged = [_judge(f, folds, distances_by_fold(f), judge) for f in range(len(folds))]
    distances, thresholds = [d for d, _ in judged], [t for _, t in judged]
    right = [(d <= t) == f.same for f, d, t in zip(folds, distances, thresholds, strict=True)]
    owners = [_owners(f, people) for f in folds]
    accuracies = np.array([r.mean() for r in right])
    sides = [
        [
            Scored(displayed(d[f.same == same]), o[f.same == same])
            for f, d, o in zip(folds, distances, owners, strict=True)
        ]
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


def threshold_fold(fold: int, folds: int) -> int:
    """Return the fold on whose pairs the threshold of `fold` is chosen.

    Folds are paired: 0 and 1, 2 and 3, ... With an odd number, the last fold uses the one before it.
    """
    return fold ^ 1 if fold ^ 1 < folds else fold - 1


def _judge(
    at: int, folds: Sequence[VerificationPairs], distances_of: PairDistances, judge: Judge | None
) -> tuple[Distances, float]:
    """Return the distances of one fold's pairs, and the threshold for them."""
    if judge is not None:
        pairs, distances = judge(at)
        return distances_of(folds[at].index), best_threshold(distances, pairs.same)
    learned = VerificationPairs.of([f for i, f in enumerate(folds) if i != at])
    return distances_of(folds[at].index), best_threshold(distances_of(learned.index), learned.same)


def _owners(fold: VerificationPairs, people: Ids) -> Ids:
    """Return the (P, 2) people of each pair. Each photo of an unknown person counts as a person of its own."""
    known = people[fold.index]
    return np.where(known < 0, -1 - fold.index, known)
