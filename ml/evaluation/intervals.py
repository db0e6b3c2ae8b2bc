"""How sure a figure is: bootstrap over people, since the photos of one person succeed and fail together."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit


@dataclass(frozen=True)
class Interval:
    """A figure and the range that holds it with 95 % confidence."""

    value: float
    low: float
    high: float


def bootstrap_mean(
    values: NDArray[np.float64],
    groups: NDArray[np.float64] | None = None,
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """The mean of (Q,) values with its percentile interval, whole groups resampled together. NaNs are left out.

    groups: (Q,) whom a value belongs to; None: each to itself.
    """
    kept = np.isfinite(values)
    if not kept.any():
        return Interval(float("nan"), float("nan"), float("nan"))
    _, member = np.unique(groups[kept] if groups is not None else np.flatnonzero(kept), return_inverse=True)
    totals, counts = np.bincount(member, values[kept]), np.bincount(member)
    draw, people = np.random.default_rng(seed), len(counts)
    means = np.empty(resamples)
    for i in range(resamples):
        times = np.bincount(draw.integers(0, people, people), minlength=people)
        means[i] = (times @ totals) / (times @ counts)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values[kept].mean()), float(low), float(high))


def paired_difference(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    groups: NDArray[np.float64] | None = None,
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """mean(a - b) of the same (Q,) queries under two methods, with its interval; narrower than two apart."""
    return bootstrap_mean(a - b, groups, resamples=resamples, level=level, seed=seed)


def over_draws(values: NDArray[np.float64], *, level: float = 0.95) -> Interval:
    """The mean of one figure a draw, with Student's interval; two draws or more, else the interval is a point."""
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return Interval(mean, mean, mean)
    half = float(stdtrit(n - 1, (1 + level) / 2) * np.std(values, ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half)
