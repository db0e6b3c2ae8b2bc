"""Measure how well distances separate genuine from impostor pairs: AUC, EER, FNMR at FMR, and dispersion."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.errors import WrongShape
from ml.evaluation.intervals import RESAMPLES, Figures, Interval, Times, bootstrap, pair_times, widen_at_bounds
from ml.evaluation.verification import Distances, det, fnmr_at

FMRS = (0.001, 0.01)
BINS = 256
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scored:
    """Genuine or impostor pairs.

    distances: (n,), smaller is more alike
    people: (n,) person of each genuine pair, or (n, 2) the two people of each pair. In a resample, a pair of two people
        counts as often as the product of their counts.
    """

    distances: Distances
    people: NDArray[np.float64] | NDArray[np.int64]

    @property
    def ends(self) -> NDArray[np.float64] | NDArray[np.int64]:
        return self.people[:, None] if self.people.ndim == 1 else self.people


@dataclass(frozen=True)
class Dispersion:
    """The distributions of genuine ("friends") and impostor ("foes") distances (000, Table 6), in their unit.

    friends, foes: mean distances; friends_sd, foes_sd: their standard deviations over pairs
    d_prime: difference of the means in pooled standard deviations (the root of the mean variance), positive if genuine
        pairs are nearer (Green and Swets 1966)
    """

    friends: Interval
    foes: Interval
    friends_sd: Interval
    foes_sd: Interval
    d_prime: Interval


@dataclass(frozen=True)
class Separation:
    """Metrics of separation with bootstrap intervals over people. eer, auc, fnmr (by FMR, as text): 0..1"""

    eer: Interval
    auc: Interval
    fnmr: dict[str, Interval]
    dispersion: Dispersion


def separation(
    genuine: Sequence[Scored],
    impostor: Sequence[Scored],
    *,
    fmrs: Sequence[float] = FMRS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Separation:
    """Measure one set of pairs, or average over several whose distances cannot be pooled (folds of a fitted model).

    Intervals are computed from about 400 bins of distances, which are finer for near impostors, and are shifted to the
    exact values. Raises WrongShape if a set lacks genuine or impostor pairs.
    """
    both = list(zip(genuine, impostor, strict=True))
    if not both or not all(len(side.distances) for pair in both for side in pair):
        raise WrongShape("genuine and impostor distances", "not empty", "none of one kind")
    people = np.unique(np.concatenate([side.ends.ravel() for pair in both for side in pair]))
    parts = [_figures(*pair, people, fmrs) for pair in both]
    exact = np.mean([_exact(*pair, fmrs) for pair in both], axis=0)

    def figures(times: Times) -> Numbers:
        return np.asarray(np.mean([part(times) for part in parts], axis=0), np.float64)

    eer, auc, *more = bootstrap(figures, len(people), values=exact, resamples=resamples, seed=seed)
    own = len(np.unique(np.concatenate([side.ends.ravel() for side in genuine])))
    rates = {f"{f:g}": widen_at_bounds(one, own) for f, one in zip(fmrs, more, strict=False)}
    return Separation(eer, auc, rates, Dispersion(*more[len(fmrs) :]))


def _exact(genuine: Scored, impostor: Scored, fmrs: Sequence[float]) -> Numbers:
    curve = det(genuine.distances, impostor.distances)
    sides = [np.asarray(s.distances, np.float64) for s in (genuine, impostor)]
    (friends, foes), (near, far) = [s.mean() for s in sides], [s.std() for s in sides]
    return np.array(
        [curve.eer, curve.auc, *fnmr_at(curve, fmrs), friends, foes, near, far, _d_prime(friends, foes, near, far)]
    )


def _figures(genuine: Scored, impostor: Scored, people: Numbers, fmrs: Sequence[float]) -> Figures:
    """Return a function that computes the metrics from bootstrap counts of people."""
    edges, centre = _edges(genuine.distances, impostor.distances), float(np.mean(impostor.distances))
    sides = [_Side(side, people, edges, centre) for side in (genuine, impostor)]

    def figures(times: Times) -> Numbers:
        (tar, friends, near), (fmr, foes, far) = (side.measure_rates(times) for side in sides)
        with np.errstate(invalid="ignore", divide="ignore"):
            auc = ((fmr[:, 1:] - fmr[:, :-1]) * (tar[:, 1:] + tar[:, :-1]) / 2).sum(1)
            at = [1 - np.take_along_axis(tar, _last(fmr <= f), 1)[:, 0] for f in fmrs]
            columns = [_crossing(fmr, 1 - tar), auc, *at, friends + centre, foes + centre, near, far]
            return np.stack([*columns, _d_prime(friends, foes, near, far)], axis=1)

    return figures


def _last(true: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return (R, 1) the last column in which a rising curve is within a limit, at least the first."""
    return np.asarray(np.maximum(true.sum(1, keepdims=True) - 1, 0), np.int64)


def _crossing(fmr: Numbers, fnmr: Numbers) -> Numbers:
    """Return (R,) the rate at which the falling FNMR meets the rising FMR, interpolated between two bins."""
    above = fnmr - fmr
    at = np.clip(np.argmax(above <= 0, axis=1), 1, None)[:, None]
    before, after = (np.take_along_axis(above, i, 1)[:, 0] for i in (at - 1, at))
    low, high = (np.take_along_axis(fmr, i, 1)[:, 0] for i in (at - 1, at))
    return np.asarray(low + (high - low) * before / (before - after), np.float64)


def _d_prime(friends: Numbers, foes: Numbers, near: Numbers, far: Numbers) -> Numbers:
    spread = np.sqrt((np.square(near) + np.square(far)) / 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((foes - friends) / spread, np.float64)


def _edges(genuine: Distances, impostor: Distances) -> Numbers:
    """Return the edges of the bins: quantiles of both kinds, and finer ones for the nearest impostors."""
    n = len(impostor)
    ranks = np.unique(np.concatenate([np.geomspace(1, n, BINS // 2), np.linspace(1, n, BINS // 2)]).astype(np.int64))
    own = np.quantile(genuine, np.linspace(0, 1, BINS // 2), method="inverted_cdf")
    return np.unique(np.concatenate([np.sort(impostor)[ranks - 1], own]).astype(np.float64))


class _Side:
    """Pairs of one kind, counted by person and distance."""

    def __init__(self, side: Scored, people: Numbers, edges: Numbers, centre: float) -> None:
        ends = np.sort(np.searchsorted(people, side.ends), axis=1)
        code, unit = np.unique(ends[:, 0] * len(people) + ends[:, -1], return_inverse=True)
        self.first, self.second = np.divmod(code, len(people))
        bins = np.searchsorted(edges, side.distances.astype(np.float64))
        width = len(edges) + 1
        counted = np.bincount(unit * width + bins, minlength=len(code) * width).reshape(len(code), width)
        self.counts = counted.astype(np.float32)
        moved = side.distances.astype(np.float64) - centre
        self.moments = np.stack([np.bincount(unit, moved**power) for power in range(3)], axis=1)

    def measure_rates(self, times: Times) -> tuple[Numbers, Numbers, Numbers]:
        """Return (R, B) the share accepted at each edge, and (R,) mean and (R,) SD of the distances."""
        weights = pair_times(times, self.first, self.second)
        shares = np.cumsum(weights.astype(np.float32) @ self.counts, axis=1, dtype=np.float64)
        n, total, squares = (weights @ self.moments).T
        with np.errstate(invalid="ignore", divide="ignore"):
            accepted = np.concatenate([np.zeros((len(times), 1)), shares / shares[:, -1:]], axis=1)
            mean = total / n
            return accepted, mean, np.sqrt(np.maximum(squares / n - mean**2, 0))
