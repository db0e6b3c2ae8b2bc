"""Paired comparisons of two systems that were measured on the same queries, pairs or folds."""

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.errors import WrongShape
from ml.evaluation.intervals import Interval, paired_difference, student_interval

Values = NDArray[np.float64]

PERMUTATIONS = 9999
CHUNK_NUMBERS = 1 << 21


@dataclass(frozen=True)
class Comparison:
    """System a minus system b, in the unit of what was compared.

    difference: the mean difference with its bootstrap interval over groups
    p: of the two-sided permutation test: the probability of a difference at least as large by chance
    groups: number of people (or queries) that were resampled and swapped as a whole
    """

    difference: Interval
    p: float
    groups: int


@dataclass(frozen=True)
class FoldComparison:
    """System a minus system b over F folds, in the unit of what was compared. All p values are two-sided.

    difference: the mean difference with the interval of the corrected t test
    t: p of the paired t test; wilcoxon: p of the exact signed-rank test. Both assume independent folds. If each fold's
        model was fitted on the other folds, they are not independent, and both tests report differences too easily.
    corrected: p of the t test whose variance is corrected for overlapping training sets (Nadeau and Bengio 2003)
    """

    difference: Interval
    t: float
    wilcoxon: float
    corrected: float
    folds: int


def compare(a: Values, b: Values, groups: Values | None = None, *, seed: int = 0) -> Comparison:
    """Compare two systems on the same queries. Queries that are NaN under either system are left out.

    a, b: (Q,) values; groups: (Q,) person of each query; None: each query is a group of its own. Raises WrongShape.
    """
    differences = _subtract(a, b)
    kept = np.isfinite(differences)
    if not kept.any():
        raise WrongShape("queries to compare", "judged under both systems", 0)
    owners = np.arange(len(differences)) if groups is None else groups
    member = np.unique(owners[kept], return_inverse=True)[1]
    totals = np.bincount(member, differences[kept]).astype(np.float64)
    return Comparison(paired_difference(a, b, groups, seed=seed), permutation_p(totals, seed=seed), len(totals))


def permutation_p(totals: Values, *, permutations: int = PERMUTATIONS, seed: int = 0) -> float:
    """Return the two-sided p of (G,) summed differences, by swapping the two systems for whole groups.

    If there are at most `permutations` different swaps, all are tried. Otherwise that many are drawn at random, and the
    observed one is counted among them, so that p is never 0 (Phipson and Smyth 2010).
    """
    seen, slack = abs(totals.sum()), 1e-9 * np.abs(totals).sum()
    g = len(totals)
    if 2**g <= permutations:
        signs = 1.0 - 2.0 * ((np.arange(2**g)[:, None] >> np.arange(g)) & 1)
        return float(np.mean(np.abs(signs @ totals) >= seen - slack))
    draw, extreme = np.random.default_rng(seed), 1
    step = max(1, CHUNK_NUMBERS // g)
    for start in range(0, permutations, step):
        swapped = draw.integers(0, 2, (min(step, permutations - start), g), np.int8)
        extreme += int(np.count_nonzero(np.abs((1.0 - 2.0 * swapped) @ totals) >= seen - slack))
    return extreme / (permutations + 1)


def compare_folds(a: Values, b: Values) -> FoldComparison:
    """Compare two systems by one value per fold. a, b: (F,) with two folds or more. Raises WrongShape."""
    differences, f = _subtract(a, b), len(a)
    if f < 2:
        raise WrongShape("folds to compare", "two or more", f)
    mean, spread = float(differences.mean()), float(differences.std(ddof=1))
    plain, wider = spread * (1 / f) ** 0.5, spread * (1 / f + 1 / (f - 1)) ** 0.5
    ranked = float(scipy.stats.wilcoxon(differences).pvalue) if differences.any() else 1.0
    interval = student_interval(mean, wider, f - 1)
    return FoldComparison(interval, _t(mean, plain, f), ranked, _t(mean, wider, f), f)


def _t(mean: float, error: float, folds: int) -> float:
    if not error:
        return 1.0 if not mean else 0.0
    return float(2 * scipy.special.stdtr(folds - 1, -abs(mean / error)))


def _subtract(a: Values, b: Values) -> Values:
    if a.shape != b.shape or a.ndim != 1:
        raise WrongShape("the other system's figures", f"{a.shape}, one each", b.shape)
    return np.asarray(a - b, np.float64)
