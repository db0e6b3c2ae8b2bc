"""Decide from paired scores of the same people whether a candidate is better than changing nothing."""

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

SIGNIFICANCE = 0.05
"""Chance that any of the candidates is taken although all of them are as good as changing nothing."""
MIN_PEOPLE = 10
"""People with several faces who are needed to compare fits."""
MAX_ACCEPT_LOSS = 0.0025
"""Mean loss of true accepts at the operating point that is tolerated for a gain in average precision."""


@dataclass(frozen=True)
class PairedGain:
    """The mean gain of a candidate over people, and its lower bound.

    value: gain in mean average precision; accepted: gain in the share of true pairs accepted at the operating point
    low: one-sided lower bound of the gain. The bounds of all candidates hold together with confidence 1 - SIGNIFICANCE,
        so that the bound of the one that is chosen for its bound holds as well
    """

    value: float
    low: float
    accepted: float

    @property
    def is_better(self) -> bool:
        """Whether the candidate is shown to be better, and does not accept clearly fewer true pairs."""
        return self.low > 0 and self.accepted >= -MAX_ACCEPT_LOSS


def measure_gain(precision: NDArray[np.float64], accepted: NDArray[np.float64], candidates: int = 1) -> PairedGain:
    """Measure the mean gain of paired differences by a one-sided t-test over people.

    precision, accepted: (P,) candidate less unchanged, for each person; candidates: number that share the significance
    """
    value = float(precision.mean())
    return PairedGain(value, value - bound_error(precision, SIGNIFICANCE / candidates), float(accepted.mean()))


def bound_error(differences: NDArray[np.float64], significance: float) -> float:
    """Return how far the mean of (P,) differences may lie above the truth; infinite for fewer than two people."""
    count = len(differences)
    if count < 2:
        return float("inf")
    error = float(differences.std(ddof=1) / np.sqrt(count))
    quantile = float(scipy.special.stdtrit(count - 1, 1 - significance))
    return quantile * error


def is_clearly_worse(precision: NDArray[np.float64]) -> bool:
    """Whether (P,) differences show that a candidate is worse, so that it need not be tried further."""
    return float(precision.mean()) + bound_error(precision, SIGNIFICANCE) < 0
