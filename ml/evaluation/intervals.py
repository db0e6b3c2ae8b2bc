"""How sure a figure is: bootstrap over people, since the photos of one person succeed and fail together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from ml.calibration.rate_intervals import CONFIDENCE, clopper_pearson

RESAMPLES = 2000
BLOCK = 1 << 20

Times = NDArray[np.float64]
"""(R, G): how often each of G groups is drawn in each of R resamples."""
Figures = Callable[[Times], NDArray[np.float64]]
"""From (R, G) times to (R, S): S figures of each resample, NaN where it has none."""


@dataclass(frozen=True)
class Interval:
    """A figure and the range that holds it with 95 % confidence."""

    value: float
    low: float
    high: float


def resample(groups: int, *, resamples: int = RESAMPLES, seed: int = 0) -> Iterator[Times]:
    """`groups` drawn with replacement as often as there are, a block of resamples at a time.

    Each block is (R, groups) counts.
    """
    draw, block = np.random.default_rng(seed), max(1, BLOCK // max(1, groups))
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        choices = draw.integers(0, groups, (rows, groups)) + groups * np.arange(rows)[:, None]
        yield np.bincount(choices.ravel(), minlength=rows * groups).reshape(rows, groups).astype(np.float64)


def pair_times(times: Times, first: NDArray[np.int64], second: NDArray[np.int64]) -> Times:
    """(R, P): how often each pair is drawn: one of two people as often as both are, together (Owen 2007).

    It errs on the side of width: up to the root of 3 where pairs of the same people have nothing in common.
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
    """S figures of everybody, each with its percentile interval as whole groups are resampled.

    values: (S,) the figures, where `figures` is only near them (it counts in bins, say): the intervals are moved there.
    centred: moved by the bias of the resamples too, for a figure that depends on how many different groups there are
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
    """The mean of (Q,) values with its percentile interval, whole groups resampled together. NaNs are left out.

    groups: (Q,) whom a value belongs to; None: each to itself.
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
    """mean(a - b) of the same (Q,) queries under two methods, with its interval; narrower than two apart."""
    return bootstrap_mean(a - b, groups, resamples=resamples, seed=seed)


def bootstrap_rate(
    values: NDArray[np.float64], groups: NDArray[np.float64] | None = None, *, seed: int = 0
) -> Interval:
    """`bootstrap_mean` of (Q,) successes, 0 or 1.

    Where all succeed or all fail, resampling shows nothing but that; then the interval is Clopper and Pearson's, with
    as many trials as there are groups.
    """
    interval = bootstrap_mean(values, groups, seed=seed)
    if interval.value not in (0.0, 1.0):
        return interval
    return widen_at_bounds(interval, int(_members(np.isfinite(values), groups).max()) + 1)


def widen_at_bounds(rate: Interval, people: int) -> Interval:
    """Clopper and Pearson's interval, with as many trials as people, of a rate of 0 or 1; any other as it is."""
    if rate.value not in (0.0, 1.0):
        return rate
    return Interval(rate.value, *clopper_pearson(people if rate.value else 0, people))


def bootstrap_pairs(
    values: Sequence[NDArray[Any]], people: Sequence[NDArray[np.int64]], *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The mean of (P,) values of pairs; of several sets, the mean of their means.

    people: (P, 2) each, whose faces a pair is of; it comes back as often as both are drawn (`pair_times`).
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
    """The number of each kept value's group."""
    own = np.flatnonzero(kept) if groups is None else groups[kept]
    return np.unique(own, return_inverse=True)[1].astype(np.int64)


def over_draws(values: NDArray[np.float64]) -> Interval:
    """The mean of one figure a draw, with Student's interval; two draws or more, else the interval is a point.

    values: (n,).
    """
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return Interval(mean, mean, mean)
    return student_interval(mean, float(np.std(values, ddof=1) / np.sqrt(n)), n - 1)


def student_interval(mean: float, error: float, freedom: int) -> Interval:
    """Return Student's interval of a mean with this standard error and so many degrees of freedom."""
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return Interval(mean, mean - half, mean + half)
