"""Other ways to predict the share of strangers named in a larger gallery, to be compared with `TailScale`."""

from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.identification.gallery_growth import FIRST_RANK, LAST_RANK, find_naming_factors
from ml.identification.growth_forecast import GrowthForecast

SLOPE_FRACTIONS = (1 / 8, 1 / 4, 1 / 2, 1.0)
GAMMA_FRACTION = 1 / 4
MIN_RATE, MAX_SHAPE = 1e-6, 1e4


def predict_by_equal_chances(forecast: GrowthForecast, distance: float, growth: float) -> float:
    """Every face is an equal chance for every stranger: 1 - (1 - p)^growth."""
    return float(-np.expm1(growth * np.log1p(-_measure(forecast, distance, 1.0))))


def predict_by_slope(forecast: GrowthForecast, distance: float, growth: float) -> float:
    """ln(-ln(1 - p)) is a line in the logarithm of the size, fitted to four sizes."""
    rates = np.array([_measure(forecast, distance, fraction) for fraction in SLOPE_FRACTIONS])
    slope = np.polyfit(np.log(SLOPE_FRACTIONS), np.log(-np.log1p(-rates)), 1)[0]
    return float(-np.expm1(np.log1p(-rates[-1]) * growth**slope))


def predict_by_gamma(forecast: GrowthForecast, distance: float, growth: float) -> float:
    """Each stranger has a chance of its own, by a gamma law (the limit of a beta law), fitted to two sizes.

    1 - p(n) = (1 + n b)^-a; where the sizes do not show a spread, a grows without limit: equal chances.
    """
    small, whole = _measure(forecast, distance, GAMMA_FRACTION), _measure(forecast, distance, 1.0)
    target = np.log1p(-whole) / np.log1p(-small)

    def excess(log_b: float) -> float:
        b = np.exp(log_b)
        return float(np.log1p(b) / np.log1p(GAMMA_FRACTION * b) - target)

    if excess(-10.0) * excess(30.0) > 0:
        return predict_by_equal_chances(forecast, distance, growth)
    b = float(np.exp(scipy.optimize.brentq(excess, -10.0, 30.0)))
    a = -np.log1p(-whole) / np.log1p(b)
    return float(-np.expm1(-min(a, MAX_SHAPE) * np.log1p(growth * b)))


def predict_by_weibull(forecast: GrowthForecast, distance: float, growth: float) -> float:
    """The distances of each search have a Weibull tail: the scale of their logarithm is the same at all ranks."""
    scale = _mean_spacing(np.log(forecast.lists.distances))
    factors = find_naming_factors(forecast.lists, distance, forecast.rule)
    return float((factors >= np.exp(-scale * np.log(growth))).mean())


def predict_by_exponential(forecast: GrowthForecast, distance: float, growth: float) -> float:
    """The distances of each search have an exponential tail: all fall by the same amount."""
    scores = forecast.person_distances(1.0) - _mean_spacing(forecast.lists.distances) * np.log(growth)
    return float((scores <= distance).mean())


def _mean_spacing(distances: NDArray[np.float64]) -> float:
    """Return the mean of k times the step from the k-th to the next of (S, K) rising distances, +inf if empty."""
    ranks = np.arange(FIRST_RANK, LAST_RANK + 1)
    known = np.isfinite(distances[:, ranks])
    further, nearer = distances[:, ranks], distances[:, ranks - 1]
    return float((ranks * np.subtract(further, nearer, where=known, out=np.zeros(known.shape)))[known].mean())


def _measure(forecast: GrowthForecast, distance: float, fraction: float) -> float:
    return max(MIN_RATE, forecast.measure_named(distance, fraction).value)


OTHER_METHODS: dict[str, Callable[[GrowthForecast, float, float], float]] = {
    "1 - (1 - p)^c": predict_by_equal_chances,
    "line through four sizes": predict_by_slope,
    "gamma law of chances": predict_by_gamma,
    "Weibull tail": predict_by_weibull,
    "exponential tail": predict_by_exponential,
}
