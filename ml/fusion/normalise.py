"""Normalise the scores of different systems to one scale before they are fused."""

from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from ml.calibration import Calibration
from ml.errors import NotFitted, TooFewPairs, WrongShape
from ml.fusion.common.scores import Scores, checked

Kind = Literal["platt", "z", "min-max", "identity"]


@dataclass
class Normalise:
    """Maps each score s to slope s + offset. Each system has its own positive slope, so its ROC curve does not change.

    Convention:
        scores: (P, S) of P pairs and S systems, finite; higher means more alike, so pass distances with a minus sign
        fit takes pairs that are not tested: the training folds

    kind: "platt": the log-odds of "same", by Platt scaling with balanced classes (ml.calibration)
        "z": mean 0 and standard deviation 1; "min-max": from 0 to 1; "identity": unchanged
    000 uses a "generalised bnorm" without defining it; Platt's log-odds are used instead.
    """

    kind: Kind = "platt"
    slopes: Scores | None = field(default=None, init=False, repr=False)
    offsets: Scores | None = field(default=None, init=False, repr=False)

    def fit(self, scores: Scores, same: NDArray[np.bool_]) -> Self:
        """Fit slopes and offsets to (P, S) scores; same: (P,) bool. Raises WrongShape, NotFinite, TooFewPairs."""
        scores = checked(scores, same)
        if not len(scores):
            raise TooFewPairs("pairs to normalise scores with", 1, 0)
        lines = np.array([self._line(system, same) for system in scores.T]).reshape(-1, 2)
        self.slopes, self.offsets = lines.T
        return self

    def __call__(self, scores: Scores) -> Scores:
        """Normalise (P, S) scores: (P, S). Raises NotFitted, WrongShape, NotFinite."""
        if self.slopes is None or self.offsets is None:
            raise NotFitted(type(self).__name__)
        return np.asarray(checked(scores, systems=len(self.slopes)) * self.slopes + self.offsets)

    def _line(self, scores: Scores, same: NDArray[np.bool_]) -> tuple[float, float]:
        if self.kind == "identity":
            return 1.0, 0.0
        if self.kind == "platt":
            calibration = Calibration.fit(-scores[same], -scores[~same])
            return calibration.slope, calibration.intercept
        if self.kind == "z":
            middle, width = scores.mean(), scores.std()
        elif self.kind == "min-max":
            middle, width = scores.min(), np.ptp(scores)
        else:
            raise WrongShape("kind", "platt, z, min-max or identity", repr(self.kind))
        width = float(width) or 1.0  # constant scores are only shifted
        return 1 / width, -float(middle) / width
