"""Estimate how likely a pair shows one person, from its score and the answers so far."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ASSUMED_PROBABILITIES = (0.9, 0.02)
"""Before any answer: the probability of the smallest score, and that of the median."""
ASSUMED_ANSWERS = 2.0
"""How many answers each of these two assumptions weighs as much as."""
MIN_SLOPE = 0.05
"""Per standard deviation of the scores: the smaller score is always the more likely pair."""


@dataclass(frozen=True)
class SameProbability:
    """A logistic function of the score: P(same) = 1 / (1 + exp(slope * score - intercept)).

    Unlike a calibration, it gives the probability among the pairs that are asked about, not at even odds.
    """

    slope: float
    intercept: float

    @classmethod
    def fit(cls, scores: Floats, same: NDArray[np.bool_], candidates: Floats) -> Self:
        """Fit to (L,) scores of answered pairs and (L,) answers, beside the assumptions.

        candidates: (P,) scores of all pairs that could be asked about, P > 0
        """
        x = np.concatenate([scores, [candidates.min(), np.median(candidates)]])
        y = np.concatenate([same.astype(np.float64), ASSUMED_PROBABILITIES])
        weights = np.concatenate([np.ones(len(scores)), np.full(len(ASSUMED_PROBABILITIES), ASSUMED_ANSWERS)])
        centre = np.average(x, weights=weights)
        width = x.std() or 1.0
        u = (x - centre) / width

        def loss(params: Floats) -> tuple[float, Floats]:
            logits = params[1] - params[0] * u
            error = weights * (scipy.special.expit(logits) - y)
            entropy = weights @ (np.logaddexp(0, logits) - y * logits)
            return float(entropy), np.array([-error @ u, error.sum()])

        bounds = [(MIN_SLOPE, None), (None, None)]
        slope, intercept = scipy.optimize.minimize(loss, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=bounds).x
        return cls(float(slope / width), float(intercept + slope * centre / width))

    def predict(self, scores: Floats) -> Floats:
        """Return the (P,) probabilities of (P,) scores."""
        probabilities: Floats = scipy.special.expit(self.intercept - self.slope * scores)
        return probabilities
