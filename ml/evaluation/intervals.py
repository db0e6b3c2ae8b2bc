"""Bootstrap intervals over people, because the photos of a person succeed and fail together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.calibration.rate_intervals import CONFIDENCE, clopper_pearson

RESAMPLES = 2000
BLOCK_NUMBERS = 1 << 20

Times = NDArray[np.float64]
"""(R, G): number of times that each of G groups is drawn in each of R resamples."""
Figures = Callable[[Times], NDArray[np.float64]]
"""Maps (R, G) counts to (R, S): S metrics of each resample, NaN where undefined."""


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def resample(groups: int, *, resamples: int = RESAMPLES, seed: int = 0) -> Iterator[Times]:
    """Draw `groups` groups with replacement, `resamples` times; yields blocks of (R, groups) counts."""
    draw, block = np.random.default_rng(seed), max(1, BLOCK_NUMBERS // max(1, groups))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        choices = draw.integers(0, groups, (rows, groups)) + groups * np.arange(rows)[:, None]
        yield np.bincount(choices.ravel(), minlength=rows * groups).reshape(rows, groups).astype(np.float64)


def pair_times(times: Times, first: NDArray[np.int64], second: NDArray[np.int64]) -> Times:
    """Return (R, P) the counts of each pair: the product of the counts of its two people (Owen 2007).

    Intervals can be too wide, by a factor of up to the root of 3 if pairs of the same people are independent.
    """
    return np.where(first == second, times[:, first], times[:, first] * times[:, second])


def bootstrap(
    figures: Figures,
    groups: int,
    *,
    values: NDArray[np.float64] | None = None,
    centred: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Interval, ...]:
    """Return S metrics, each with its percentile interval from resampling whole groups.

    values: (S,) exact metrics, if `figures` only approximates them (by bins, for example); the intervals are shifted
        to them
    centred: whether to remove the bias of the resamples, for metrics that depend on the number of different groups
    """
    near = figures(np.ones((1, groups)))[0]
    resampled = np.concatenate([figures(times) for times in resample(groups, resamples=resamples, seed=seed)])
    centre = near if values is None else values
    kept = [column[np.isfinite(column)] for column in resampled.T]
    middle = [column.mean() if len(column) else np.nan for column in kept] if centred else near
    return tuple(_interval(*parts) for parts in zip(centre, centre - middle, kept, strict=True))


def _interval(value: float, moved: float, resampled: NDArray[np.float64]) -> Interval:
    if not len(resampled) or not np.isfinite(value):
        return Interval(float(value), float("nan"), float("nan"))
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) + moved
    return Interval(float(value), float(low), float(high))


def bootstrap_mean(
    values: NDArray[np.float64],
    groups: NDArray[np.float64] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return the mean of (Q,) values with its percentile interval from resampling whole groups. NaNs are left out.

    groups: (Q,) group (person) of each value; None: each value is a group of its own
    """
    kept = np.isfinite(values)
    if not kept.any():
        return Interval(float("nan"), float("nan"), float("nan"))
    member = _members(kept, groups)
    totals, counts = np.bincount(member, values[kept]), np.bincount(member)

    def mean(times: Times) -> NDArray[np.float64]:
        estimate: NDArray[np.float64] = ((times @ totals) / (times @ counts))[:, None]
        return estimate

    exact = np.array([values[kept].mean()])
    return bootstrap(mean, len(counts), values=exact, resamples=resamples, seed=seed)[0]


def paired_difference(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    groups: NDArray[np.float64] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return mean(a - b) over the same (Q,) queries with its interval, which is narrower than for unpaired queries."""
    return bootstrap_mean(a - b, groups, resamples=resamples, seed=seed)


def bootstrap_rate(
    values: NDArray[np.float64], groups: NDArray[np.float64] | None = None, *, seed: int = 0
) -> Interval:
    """Return `bootstrap_mean` of (Q,) successes, 0 or 1.

    If all are equal, resampling shows no variance; the interval is then Clopper and Pearson's, with one trial per
    group.
    """
    interval = bootstrap_mean(values, groups, seed=seed)
    if interval.value not in (0.0, 1.0):
        return interval
    return widen_at_bounds(interval, int(_members(np.isfinite(values), groups).max()) + 1)


def widen_at_bounds(rate: Interval, people: int) -> Interval:
    """Replace the interval of a rate of 0 or 1 by Clopper and Pearson's, with one trial per person."""
    if rate.value not in (0.0, 1.0):
        return rate
    return Interval(rate.value, *clopper_pearson(people if rate.value else 0, people))


def bootstrap_pairs(
    values: Sequence[NDArray[Any]], people: Sequence[NDArray[np.int64]], *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Return the mean of (P,) values of pairs, or the mean over several sets of pairs, with its interval over people.

    people: (P, 2) people of each pair, for each set; a pair counts as `pair_times` says
    """
    known = np.unique(np.concatenate([ends.ravel() for ends in people]))
    positions = [np.searchsorted(known, ends).T for ends in people]

    def mean(times: Times) -> NDArray[np.float64]:
        pair_weights = [pair_times(times, *ends) for ends in positions]
        with np.errstate(invalid="ignore"):
            means = [(weights @ part) / weights.sum(1) for weights, part in zip(pair_weights, values, strict=True)]
        return np.asarray(np.mean(means, axis=0), np.float64)[:, None]

    return bootstrap(mean, len(known), resamples=resamples, seed=seed)[0]


def _members(kept: NDArray[np.bool_], groups: NDArray[np.float64] | None) -> NDArray[np.int64]:
    """Return the group number of each kept value."""
    own = np.flatnonzero(kept) if groups is None else groups[kept]
    return np.unique(own, return_inverse=True)[1].astype(np.int64)


def over_draws(values: NDArray[np.float64]) -> Interval:
    """Return the mean of (n,) values, one per draw, with Student's interval; with one draw, the interval is a point."""
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return Interval(mean, mean, mean)
    return student_interval(mean, float(np.std(values, ddof=1) / np.sqrt(n)), n - 1)


def student_interval(mean: float, error: float, freedom: int) -> Interval:
    """Return Student's interval of a mean with this standard error and so many degrees of freedom."""
    half = float(scipy.special.stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return Interval(mean, mean - half, mean + half)
