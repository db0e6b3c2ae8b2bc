"""Compute the figures of a table from results: in percent, each with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.evaluation.comparisons.paired_tests import Comparison, compare
from ml.evaluation.folds import Verification, threshold_fold, verify
from ml.evaluation.intervals import Interval, bootstrap_mean
from ml.evaluation.retrieval import average_precision
from ml.evaluation.verification import Distances
from ml.evaluation.verification_pairs import VerificationPairs
from ml.types import Ids
from papers.harness.table_types import Figure, Result
from papers.harness.verdicts import NO_DIFFERENCE, side_of_zero

Values = NDArray[np.float64]
ALONE, CROWD = "alone", "crowd"


@dataclass(frozen=True, eq=False)
class Queries:
    """The queries of one draw: the ranks of their relevant faces, and their people."""

    ranks: tuple[Ids, ...]
    people: Values

    @classmethod
    def of(cls, result: Result, where: str = ALONE) -> "Queries":
        """Read the queries from a result. where: ALONE (no distractors) or CROWD (all distractors)"""
        ends = np.cumsum(result.arrays[f"{where}_counts"])[:-1]
        parts = np.split(result.arrays[f"{where}_ranks"].astype(np.int64), ends)
        return cls(tuple(parts), result.arrays[f"{where}_people"])

    def values(self, column: str) -> Values:
        """Return (Q,) values of `mAP` or `n@K` (n-call@K; `1@10` is 1-call@10), 0..1, NaN without relevant faces."""
        if column == "mAP":
            return np.array([average_precision(r) for r in self.ranks])
        n, k = (int(part) for part in column.split("@"))
        return np.array([float(len(r) >= n and r[n - 1] <= k) if len(r) else np.nan for r in self.ranks])


def figure(results: Sequence[Result], column: str, where: str = ALONE) -> Figure:
    """Compute the mean over draws, and its bootstrap interval over people, with all draws of a person together."""
    draws = [Queries.of(r, where) for r in results]
    values = [d.values(column) for d in draws]
    mean = bootstrap_mean(np.concatenate(values), np.concatenate([d.people for d in draws]))
    means = [float(np.nanmean(v)) for v in values]
    return percent(mean, float(np.std(means, ddof=1)) if len(means) > 1 else float("nan"), len(means))


def figures(results: Sequence[Result], columns: Sequence[str], where: str = ALONE) -> dict[str, Figure]:
    return {column: figure(results, column, where) for column in columns}


def percent(interval: Interval, sd: float = float("nan"), draws: int = 1) -> Figure:
    return Figure(100 * interval.value, 100 * interval.low, 100 * interval.high, 100 * sd, draws)


def difference(a: Sequence[Result], b: Sequence[Result], column: str, where: str = ALONE) -> Comparison:
    """Compare a with b on the same queries of the same draws: a - b (0..1) with its interval, and p by permutation."""
    first, second = ([Queries.of(r, where) for r in side] for side in (a, b))
    x, y = (np.concatenate([q.values(column) for q in side]) for side in (first, second))
    return compare(x, y, np.concatenate([q.people for q in first]))


def describe_difference(comparison: Comparison) -> str:
    """Format a difference in points, such as `+1.2 [+0.3, +2.1], p 0.01`.

    `, no difference shown` is appended if the interval covers 0.
    """
    one = comparison.difference
    unclear = "" if side_of_zero(percent(one)) else f", {NO_DIFFERENCE}"
    return f"{100 * one.value:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}], p {comparison.p:.2g}{unclear}"


def verified(
    folds: Sequence[Result], pairs: Sequence[VerificationPairs], people: Ids, judges: Sequence[Result] = ()
) -> Verification:
    """Measure verification over LFW's folds, each with its own model.

    judges: for folds 0 and 1, for 2 and 3, ..., the result of a fit that saw neither. Under it, the pairs of each of
        the two folds give the threshold of the other. Without judges, the threshold is the best one on the nine other
        folds under the fold's own model.
    """
    every = np.cumsum([0, *(len(p.same) for p in pairs)])
    position = {tuple(pair): i for i, pair in enumerate(np.concatenate([p.index for p in pairs]).tolist())}

    def compute_distances(fold: int):  # type: ignore[no-untyped-def]
        kept = folds[fold].arrays["distances"]
        return lambda index: kept[[position[tuple(pair)] for pair in index.tolist()]]

    def judge(fold: int) -> tuple[VerificationPairs, Distances]:
        other = threshold_fold(fold, len(pairs))
        return pairs[other], judges[fold // 2].arrays["distances"][every[other] : every[other + 1]]

    assert every[-1] == len(folds[0].arrays["distances"])
    return verify(list(pairs), people, compute_distances, judge=judge if judges else None)


def accuracy(
    folds: Sequence[Result], pairs: Sequence[VerificationPairs], people: Ids, judges: Sequence[Result] = ()
) -> Figure:
    """Return the accuracy of `verified` as a figure. The interval resamples people; sd is over folds."""
    verification = verified(folds, pairs, people, judges)
    return Figure(
        100 * verification.accuracy.mean,
        100 * verification.people.low,
        100 * verification.people.high,
        100 * verification.accuracy.sd,
        len(folds),
    )
