"""Compare two models on labelled pairs, for galleries without named people."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.errors import WrongShape
from ml.evaluation.comparisons.models import PAIRS, Difference, ModelComparison
from ml.evaluation.comparisons.paired_tests import permutation_p
from ml.evaluation.intervals import Interval, bootstrap_pairs
from ml.types import Ids

Distances = NDArray[np.float64]
FOLDS = 5
MAX_LABELLER_SHARE = 0.5
"""If one labeller has a larger share of the pairs, the pairs are split by person instead of by labeller."""


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """P labelled pairs of faces.

    same: (P,) bool; people: (P, 2) person of each face, where faces joined by "same" count as one person
    labellers: (P,) who labelled each pair
    """

    same: NDArray[np.bool_]
    people: Ids
    labellers: Sequence[str]


def compare_pairs(baseline: Distances | None, candidate: Distances, pairs: LabelledPairs) -> ModelComparison:
    """Compare the balanced accuracy of two models on labelled pairs; "same" and "different" pairs weigh alike.

    baseline, candidate: (P,) distances of the pairs under each model
    Each labeller's pairs are decided at the threshold that is best on the pairs of the other labellers. If one labeller
    has more than half of the pairs, the pairs are split by person instead. Intervals resample people; a pair counts as
    often as both of its people are drawn. Raises WrongShape unless there are pairs of both kinds.
    """
    if pairs.same.all() or not pairs.same.any():
        raise WrongShape("labelled pairs", "of both kinds", f"{int(pairs.same.sum())} of {len(pairs.same)} the same")
    sides = [candidate] if baseline is None else [baseline, candidate]
    right = [_decide_pairs(distances, pairs) for distances in sides]
    weights = len(pairs.same) / (2 * np.where(pairs.same, pairs.same.sum(), (~pairs.same).sum()))
    shares = [bootstrap_pairs([side * weights], [pairs.people]) for side in right]
    difference = {}
    if baseline is not None:
        gains = (right[1].astype(np.float64) - right[0]) * weights
        member = np.unique(pairs.people[:, 0], return_inverse=True)[1]
        totals = np.bincount(member, gains).astype(np.float64)
        interval = bootstrap_pairs([gains], [pairs.people])
        difference[PAIRS] = Difference(interval.value, interval.low, interval.high, permutation_p(totals))
    return ModelComparison(
        {} if baseline is None else {PAIRS: _share(shares[0])},
        {PAIRS: _share(shares[-1])},
        difference,
        people=len(np.unique(pairs.people)),
        pairs=len(pairs.same),
        identical=baseline is not None and np.array_equal(baseline, candidate),
        labellers=_by_labeller(pairs, right),
    )


def _share(interval: Interval) -> Interval:
    return Interval(interval.value, max(0.0, interval.low), min(1.0, interval.high))


def _decide_pairs(distances: Distances, pairs: LabelledPairs) -> NDArray[np.bool_]:
    """Return (P,) whether each pair is decided as it was labelled."""
    right = np.zeros(len(distances), np.bool_)
    for inside in _parts(pairs):
        limit = _balanced_threshold(distances[~inside], pairs.same[~inside])
        right[inside] = (distances[inside] <= limit) == pairs.same[inside]
    return right


def _parts(pairs: LabelledPairs) -> list[NDArray[np.bool_]]:
    """Split the pairs into parts, by labeller if none has too many, else by person: a (P,) mask of each part."""
    names = np.array(pairs.labellers, np.str_)
    parts = [names == name for name in np.unique(names)]
    if all(part.mean() <= MAX_LABELLER_SHARE and _both_kinds(pairs.same[~part]) for part in parts):
        return parts
    numbers, member = np.unique(pairs.people[:, 0], return_inverse=True)
    turn = np.random.default_rng(0).permutation(len(numbers)) % min(FOLDS, len(numbers))
    parts = [turn[member] == fold for fold in range(min(FOLDS, len(numbers)))]
    return parts if all(_both_kinds(pairs.same[~part]) for part in parts) else _each_by_itself(len(pairs.same))


def _each_by_itself(count: int) -> list[NDArray[np.bool_]]:
    return [np.arange(count) == i for i in range(count)]


def _both_kinds(same: NDArray[np.bool_]) -> bool:
    return bool(same.any() and not same.all())


def _balanced_threshold(distances: Distances, same: NDArray[np.bool_]) -> float:
    """Return the threshold with the best balanced accuracy, midway between two of the distances."""
    order = np.argsort(distances, kind="stable")
    ranked, kind = distances[order], same[order]
    accepted = np.cumsum(kind) / max(1, kind.sum()) - np.cumsum(~kind) / max(1, (~kind).sum())
    last = np.r_[ranked[1:] > ranked[:-1], True]
    best = int(np.flatnonzero(last)[np.argmax(accepted[last])])
    return float(ranked[best] if best + 1 == len(ranked) else (ranked[best] + ranked[best + 1]) / 2)


def _by_labeller(pairs: LabelledPairs, right: list[NDArray[np.bool_]]) -> dict[str, dict[str, int]]:
    names = np.array(pairs.labellers, np.str_)
    sides = ("candidate",) if len(right) == 1 else ("baseline", "candidate")
    return {
        str(name): {"pairs": int((names == name).sum())}
        | {side: int(correct[names == name].sum()) for side, correct in zip(sides, right, strict=True)}
        for name in np.unique(names)
    }
