"""Predict the rates of a larger gallery, with intervals, and measure those of smaller ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ml.calibration.rate_intervals import clopper_pearson
from ml.evaluation.intervals import Interval
from ml.identification.gallery_growth import (
    TailScale,
    find_losing_factors,
    find_naming_factors,
    measure_found,
    measure_named,
    score_first,
)
from ml.identification.person_distance import DecisionRule
from ml.identification.rival_lists import RivalLists
from ml.identification.tail_fit import half_width

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Outcome = Callable[[RivalLists, float], Flags]
"""Returns (S,) whether something happens to each search once its distances are multiplied by a factor."""

RESAMPLES = 100
NAMED_MODEL_ERROR, LOST_MODEL_ERROR = 0.1, 0.04
"""Additional standard error of ln(-ln(1 - rate)), for each factor of e that the gallery grows: of strangers named, and
of enrolled people who are not. Chosen on CelebA10k (docs/results/growth.md)."""


@dataclass(frozen=True, eq=False)
class Resample:
    """One resample. lists: with half of the rivals, the first two of each search; weights: (S,); scale: of that half"""

    lists: RivalLists
    weights: Floats
    scale: TailScale


@dataclass(frozen=True, eq=False)
class GrowthForecast:
    """How the rates of one set of searches change with the size of the gallery.

    lists: of searches for strangers, or for enrolled people (only those with another face)
    """

    lists: RivalLists
    rule: DecisionRule
    seed: int = 0

    @cached_property
    def scale(self) -> TailScale:
        """Raises TooFewPairs."""
        return TailScale.fit(self.lists)

    def person_distances(self, growth: float) -> Floats:
        """Return (S,) the person distances of strangers' searches in a larger gallery; +inf if nobody is named."""
        scores = self.scale.shrink(growth) * score_first(self.lists, self.rule) + self.lists.offsets
        return np.where(self.lists.first_is_named, scores, np.inf)

    def predict_named(self, distance: float, growths: Sequence[float]) -> list[Interval]:
        """Predict the share of strangers named at a threshold, in galleries that are so many times larger."""

        def is_named(lists: RivalLists, factor: float) -> Flags:
            return find_naming_factors(lists, distance, self.rule) >= factor

        return self._predict(is_named, growths, NAMED_MODEL_ERROR)

    def predict_found(self, distance: float, growths: Sequence[float]) -> list[Interval]:
        """Predict the share of enrolled people whose searches name them, in galleries that are larger."""

        def is_lost(lists: RivalLists, factor: float) -> Flags:
            return find_losing_factors(lists, distance, self.rule) > factor

        lost = self._predict(is_lost, growths, LOST_MODEL_ERROR)
        return [Interval(1 - share.value, 1 - share.high, 1 - share.low) for share in lost]

    def measure_named(self, distance: float, fraction: float) -> Interval:
        """Measure the share of strangers named in galleries with this fraction (0..1) of the people."""
        return self._interval_of(measure_named(self.lists, distance, self.rule, fraction))

    def measure_found(self, distance: float, fraction: float) -> Interval:
        """Measure the share of enrolled people whose searches name them, in galleries with this fraction of people."""
        return self._interval_of(measure_found(self.lists, distance, self.rule, fraction))

    def _predict(self, happens: Outcome, growths: Sequence[float], model_error: float) -> list[Interval]:
        """Predict the share of searches to which something happens."""
        weights = self.lists.weights
        shares = np.array([_share(happens(self.lists, self.scale.shrink(growth)), weights) for growth in growths])
        resampled = np.array([
            [_share(happens(r.lists, r.scale.shrink(2 * growth)), r.weights) for growth in growths]
            for r in self._resamples
        ])  # fmt: skip
        errors = _to_log_rate(resampled, 0.5 / max(1.0, weights.sum())).std(axis=0)
        errors = np.hypot(errors, model_error * np.log(growths))
        return [self._widen(share, error) for share, error in zip(shares.tolist(), errors.tolist(), strict=True)]

    @cached_property
    def _resamples(self) -> list[Resample]:
        """Draw the searching people anew, and half of the rivals: half a gallery varies around the whole as much as the
        whole varies around all people."""
        draw = np.random.default_rng(self.seed)
        resamples = []
        for _ in range(RESAMPLES):
            halved = self.lists.keep_rivals(draw.random(len(self.lists.is_named)) < 0.5)
            weights = self._draw_weights(draw)
            resamples.append(Resample(halved.first(2), weights, TailScale.fit(halved, weights)))
        return resamples

    def _draw_weights(self, draw: np.random.Generator) -> Floats:
        """Return (S,) the weights of the searches after drawing their people with replacement."""
        _, member = np.unique(self.lists.owners, return_inverse=True)
        people = int(member.max()) + 1
        times = np.bincount(draw.integers(0, people, people), minlength=people)
        return np.asarray(self.lists.weights * times[member])

    def _widen(self, value: float, error: float) -> Interval:
        """Return the interval of a predicted share, by the standard error of its `_to_log_rate`."""
        people, by = float(self.lists.weights.sum()), half_width(error)
        if 0 < value < 1:
            return Interval(value, _shift(value, -by), _shift(value, by))
        low, high = clopper_pearson(value * people, people)
        return Interval(value, _shift(low, -by), _shift(high, by))

    def _interval_of(self, chances: Floats) -> Interval:
        """Return the weighted mean of (S,) chances with its interval, by resampling the searching people."""
        weights = self.lists.weights
        people = float(weights.sum())
        value = float(weights @ chances / people)
        _, member = np.unique(self.lists.owners, return_inverse=True)
        own = np.bincount(member, weights * chances)
        variance = float(own.var()) / max(1.0, people - 1)
        if variance <= 0 or not 0 < value < 1:
            return Interval(value, *clopper_pearson(value * people, people))
        effective = max(people, value * (1 - value) / variance)
        return Interval(value, *clopper_pearson(value * effective, effective))


def _share(happens: Flags, weights: Floats) -> float:
    return float(weights @ happens / weights.sum())


def _to_log_rate(rates: Floats, floor: float) -> Floats:
    """Return ln(-ln(1 - rate)), which grows by ln(c) where each of c times as many people is an equal chance."""
    clipped = np.clip(rates, floor, 1 - floor)
    return np.asarray(np.log(-np.log1p(-clipped)))


def _shift(rate: float, by: float) -> float:
    """Return the rate after moving ln(-ln(1 - rate)) by this much."""
    if not 0 < rate < 1:
        return rate
    return float(-np.expm1(-np.exp(np.log(-np.log1p(-rate)) + by)))
