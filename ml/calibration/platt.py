"""Platt scaling: from a distance to the probability that two faces show the same person."""

from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import scipy

from ml.calibration.impostor_distances import Distances, DistanceThreshold, ImpostorDistances, require_finite
from ml.errors import Corrupt, TooFewPairs
from ml.types import Ids

MIN_PAIRS_PER_CLASS = 5
MIN_SLOPE = 1e-3
"""Per standard deviation of the distances: keeps the order of distances even if the embedding has learned nothing."""


@dataclass(frozen=True)
class Calibration:
    """What a distance means for one embedding and task: P(same) = 1 / (1 + exp(slope * distance - intercept)).

    The probability assumes a prior of one half, and falls strictly with the distance.
    """

    slope: float
    intercept: float
    impostors: ImpostorDistances

    @classmethod
    def fit(cls, genuine: Distances, impostor: Distances, people: Ids | None = None) -> Self:
        """Fit slope and intercept to (n,) genuine and (m,) impostor distances, both classes with equal weight.

        Platt's softened targets, (n + 1) / (n + 2) and 1 / (n + 2), prevent overconfidence from few pairs.
        people: (m, 2) numbers of the two people of each impostor pair; None: no two pairs share a person
        Raises TooFewPairs, NotFinite. Source: Platt 1999; Lin, Lin and Weng 2007.
        """
        for kind, distances in (("same", genuine), ("different", impostor)):
            if len(distances) < MIN_PAIRS_PER_CLASS:
                message = f"pairs of the {kind} kind to calibrate with"
                raise TooFewPairs(message, MIN_PAIRS_PER_CLASS, len(distances))
        same, other = require_finite(genuine), require_finite(impostor)
        centre = (same.mean() + other.mean()) / 2
        width = np.concatenate([same - same.mean(), other - other.mean()]).std() + abs(centre) * 1e-9 + 1e-12
        slope, intercept = _fit_logistic((same - centre) / width, (other - centre) / width)
        return cls(float(slope / width), float(intercept + slope * centre / width), ImpostorDistances.of(other, people))

    def probability(self, distance: Distances) -> Distances:
        """Return P(same person | distance) at a prior of one half: (n,) in 0..1 from (n,) distances."""
        probabilities: Distances = scipy.special.expit(self.intercept - self.slope * np.asarray(distance, np.float64))
        return probabilities

    def similarity(self, distance: Distances) -> Distances:
        """Return 100 times the probability: (n,) in 0..100 from (n,) distances."""
        return 100 * self.probability(distance)

    def distance(self, similarity: float) -> float:
        """Return the distance that has this similarity; infinite at 0 and 100."""
        with np.errstate(divide="ignore"):
            odds = np.log(np.float64(similarity)) - np.log(np.float64(100 - similarity))
        return float((self.intercept - odds) / self.slope)

    def fmr_estimate(self, distance: Distances) -> Distances:
        """Estimate the false-match rate at each of (n,) distances. See `ImpostorDistances.fmr`."""
        return self.impostors.fmr(distance)

    def threshold(self, fmr: float) -> DistanceThreshold:
        """Return the largest distance that accepts at most this share of impostor pairs. Raises WrongShape."""
        return self.impostors.threshold(fmr)

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as values that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        """Restore what `to_dict` returned, through JSON or not. Raises Corrupt."""
        try:
            distribution = ImpostorDistances.from_dict(stored["impostors"])
            return cls(float(stored["slope"]), float(stored["intercept"]), distribution)
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"this is not a calibration: {error}") from error


def _fit_logistic(same: Distances, other: Distances) -> tuple[float, float]:
    """(slope, intercept) that minimise the balanced cross-entropy against Platt's targets."""
    scores, sizes = np.concatenate([same, other]), np.array([len(same), len(other)])
    is_same = np.arange(len(scores)) < len(same)
    targets = np.where(is_same, 1 - 1 / (sizes[0] + 2), 1 / (sizes[1] + 2))
    weights = 0.5 / np.where(is_same, *sizes)

    def loss(params: Distances) -> tuple[float, Distances]:
        logits = params[1] - params[0] * scores
        error = weights * (scipy.special.expit(logits) - targets)
        entropy = weights @ (np.logaddexp(0, logits) - targets * logits)
        return float(entropy), np.array([-error @ scores, error.sum()])

    best = scipy.optimize.minimize(
        loss, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=[(MIN_SLOPE, None), (None, None)]
    ).x
    return float(best[0]), float(best[1])
