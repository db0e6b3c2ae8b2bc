"""Guess the source of a face that states none, by a linear discriminant between a source and the reference."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.types import Ids, Rows

MIN_FACES_TO_GUESS = 20
"""Of the source; and of the reference."""
MAX_WRONG_SHARE = 0.001
"""The share of the reference's faces that may be taken for another source."""
WRONG_DEVIATIONS = 3.1
"""The normal distribution exceeds so many standard deviations with the probability MAX_WRONG_SHARE."""
MIN_RECOGNISED_SHARE = 0.5
ISOTROPIC_SHARE = 0.3
"""The share of an equal spread in all directions that is mixed into the covariance."""
FOLDS = 2
MAX_GUESS_DIM = 2_048
"""Sources of wider embeddings are not guessed: the covariance has the square of their numbers."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Discriminant:
    """A face x is taken to be of the source if x @ weights > limit.

    weights: (d,); recognised: the share of the source's faces that are, among those not learned from
    """

    weights: Floats
    limit: float
    recognised: float

    @classmethod
    def fit(cls, reference: Rows, own: Rows, reference_folds: Ids, own_folds: Ids) -> Self | None:
        """Learn a discriminant of Fisher, whose covariance is that of the reference.

        reference: (n, d); own: (m, d); the folds, 0 to FOLDS - 1, keep faces of one person together, so that the limit
        is set, and the recognised are counted, on people not learned from. None if too few faces of the source are
        recognised without taking more than MAX_WRONG_SHARE of the reference for it.
        """
        if min(len(reference), len(own)) < MIN_FACES_TO_GUESS or reference.shape[1] > MAX_GUESS_DIM:
            return None
        of_reference, of_own = np.empty(len(reference)), np.empty(len(own))
        for fold in range(FOLDS):
            learned = reference[reference_folds != fold], own[own_folds != fold]
            if min(len(rows) for rows in learned) < 2:
                return None
            weights = _separate(*learned)
            of_reference[reference_folds == fold] = reference[reference_folds == fold] @ weights
            of_own[own_folds == fold] = own[own_folds == fold] @ weights
        rare = float(np.quantile(of_reference, 1 - MAX_WRONG_SHARE, method="higher"))
        limit = max(rare, float(of_reference.mean() + WRONG_DEVIATIONS * of_reference.std()))
        recognised = float((of_own > limit).mean())
        return cls(_separate(reference, own), limit, recognised) if recognised >= MIN_RECOGNISED_SHARE else None

    def lead(self, rows: Rows) -> Floats:
        """Return (N,) by how much (N, d) rows exceed the limit; above 0 where they are taken to be of the source."""
        lead: Floats = rows.astype(np.float64) @ self.weights - self.limit
        return lead


def _separate(reference: Rows, own: Rows) -> Floats:
    """Return the (d,) direction, scaled so that the means of both lie 1 apart, and the reference's mean at 0."""
    exact = reference.astype(np.float64)
    centred = exact - exact.mean(0)
    covariance = centred.T @ centred / len(centred)
    dim = len(covariance)
    mixed = (1 - ISOTROPIC_SHARE) * covariance + ISOTROPIC_SHARE * np.trace(covariance) / dim * np.eye(dim)
    difference = own.mean(0, dtype=np.float64) - exact.mean(0)
    weights = np.linalg.solve(mixed, difference)
    scaled: Floats = weights / max(float(weights @ difference), np.finfo(np.float64).tiny)
    return scaled
