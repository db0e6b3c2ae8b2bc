"""Fit the lower tail of strangers' distances. Small rates then need fewer searches, and tolerate a few wrong names."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.calibration.distance_map import DistanceMap
from ml.calibration.rate_intervals import CONFIDENCE

Floats = NDArray[np.float64]

LOW_SHARE, HIGH_SHARE = 0.03, 0.2
MIN_POINTS = 15
RESAMPLES = 200
EXTRAPOLATION_ERROR = 0.12
"""Additional standard error of the logarithm of a rate, for each factor of e below LOW_SHARE. Real tails are not quite
exponential: at a requested rate of 1 %, they named 0.65 to 0.95 % of strangers (docs/results/openset.md)."""


def half_width(error: float) -> float:
    """Return how far the interval of a value with this standard error reaches to either side."""
    return float(scipy.special.ndtri((1 + CONFIDENCE) / 2)) * error


@dataclass(frozen=True)
class TailFit:
    """An exponential tail: distance = intercept + slope * ln(share of searches up to this distance).

    It is fitted between the shares LOW_SHARE and HIGH_SHARE, and used below. In every large gallery, some people are
    enrolled under two names and appear among the few nearest searches, where an order statistic would take them for
    strangers.
    covariance: (intercept, both, slope), estimated by resampling people
    """

    intercept: float
    slope: float
    covariance: tuple[float, float, float]

    @classmethod
    def fit(cls, distances: Floats, people: NDArray[np.int64], seed: int = 0) -> Self | None:
        """Fit the tail; None if there are too few searches, or if the distances do not rise.

        distances: (S,) of the searches, +inf if nobody was found; people: (S,) the stranger of each; all weigh alike
        """
        _, own, counts = np.unique(people, return_inverse=True, return_counts=True)
        order = np.argsort(distances, kind="stable")
        ordered, own = distances[order], own[order]
        weights = 1 / counts[own]
        parameters = _fit(ordered, weights)
        if parameters is None:
            return None
        draw, several = np.random.default_rng(seed), []
        for _ in range(RESAMPLES):
            times = np.bincount(draw.integers(0, len(counts), len(counts)), minlength=len(counts))
            again = _fit(ordered, weights * times[own])
            if again is not None:
                several.append(again)
        if len(several) < RESAMPLES // 2:
            return None
        spread = np.cov(np.array(several).T)
        return cls(*parameters, (float(spread[0, 0]), float(spread[0, 1]), float(spread[1, 1])))

    def distance(self, share: float) -> float:
        """Return the distance up to which this share (0..1) of searches comes."""
        return self.intercept + self.slope * float(np.log(share))

    def carried_over(self, distances: DistanceMap) -> Self | None:
        """Return the tail in another embedding, through the ends between which it was fitted; None if it is flat."""
        logs = np.log([LOW_SHARE, HIGH_SHARE])
        low, high = distances.apply(np.array([self.distance(LOW_SHARE), self.distance(HIGH_SHARE)]))
        slope = float((high - low) / (logs[1] - logs[0]))
        if slope <= 0:
            return None
        ratio = (slope / self.slope) ** 2
        a, both, b = self.covariance
        return type(self)(float(low - slope * logs[0]), slope, (a * ratio, both * ratio, b * ratio))

    def interval(self, share: float) -> tuple[float, float]:
        """Return the 95 % interval of the true share of searches up to `distance(share)`.

        Computed by the delta method on its logarithm, with an allowance for tails that are not exponential.
        """
        log = float(np.log(share))
        gradient = np.array([-1 / self.slope, -log / self.slope])
        a, both, b = self.covariance
        misfit = EXTRAPOLATION_ERROR * max(0.0, float(np.log(LOW_SHARE)) - log)
        error = float(np.sqrt(max(0.0, gradient @ np.array([[a, both], [both, b]]) @ gradient) + misfit**2))
        half = half_width(error)
        return float(np.exp(log - half)), float(min(1.0, np.exp(log + half)))


def _fit(ordered: Floats, weights: Floats) -> tuple[float, float] | None:
    """Regress rising distances on the logarithm of the cumulative share of the weights, by least squares."""
    total = weights.sum()
    if total <= 0:
        return None
    shares = (np.cumsum(weights) - weights / 2) / total
    inside = (shares >= LOW_SHARE) & (shares <= HIGH_SHARE) & (weights > 0) & np.isfinite(ordered)
    if inside.sum() < MIN_POINTS:
        return None
    slope, intercept = np.polyfit(np.log(shares[inside]), ordered[inside], 1, w=np.sqrt(weights[inside]))
    return (float(intercept), float(slope)) if slope > 0 else None
