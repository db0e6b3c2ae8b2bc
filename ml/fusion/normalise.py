"""Scores of different systems, brought to one scale before they are fused."""

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
    """s -> slope s + offset, with a slope above zero of each system's own: no system's ROC is changed.

    Convention:
        scores: (P, S) of S systems, finite; higher is more alike, so a distance goes in with its sign turned
        fit is given pairs that the test never sees: the training folds

    kind: "platt": the log-odds of being the same, by Platt's method, both classes weighing alike (ml.calibration);
    "z": mean 0 and standard deviation 1; "min-max": the least is 0 and the greatest 1; "identity": as they are.
    000 names a "generalised bnorm" that nobody defines; Platt's log-odds stand in for it.
    """

    kind: Kind = "platt"
    slopes: Scores | None = field(default=None, init=False, repr=False)
    offsets: Scores | None = field(default=None, init=False, repr=False)

    def fit(self, scores: Scores, same: NDArray[np.bool_]) -> Self:
        """same: (P,). Raises WrongShape, NotFinite, TooFewPairs."""
        scores = checked(scores, same)
        if not len(scores):
            raise TooFewPairs("pairs to normalise scores with", 1, 0)
        lines = np.array([self._line(system, same) for system in scores.T]).reshape(-1, 2)
        self.slopes, self.offsets = lines.T
        return self

    def __call__(self, scores: Scores) -> Scores:
        """(P, S) -> (P, S). Raises NotFitted, WrongShape, NotFinite."""
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
        width = float(width) or 1.0  # a system that always says the same is only moved
        return 1 / width, -float(middle) / width
