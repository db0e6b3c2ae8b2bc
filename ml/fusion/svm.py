"""Late fusion: combine the scores of several systems by a linear support vector machine (000, section 4.2)."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.errors import NotFitted, TooFewPairs
from ml.fusion.common.scores import Scores, checked


@dataclass
class Svm:
    """Computes w . scores + b, which is above zero if the pair is taken for the same person.

    Convention: as in `ml.fusion.normalise`, whose output this takes

    cost: C, the cost of a pair on the wrong side of its margin; the classes are balanced
    """

    cost: float = 1.0
    weights: Scores | None = field(default=None, init=False, repr=False)
    bias: float = field(default=0.0, init=False, repr=False)

    def fit(self, scores: Scores, same: NDArray[np.bool_]) -> Self:
        """Fit weights and bias to (P, S) scores; same: (P,) bool. Raises WrongShape, NotFinite, TooFewPairs."""
        from sklearn.svm import LinearSVC  # imported here, because it takes half a second to load

        scores = checked(scores, same)
        for what, count in (("same", int(same.sum())), ("different", int((~same).sum()))):
            if not count:
                raise TooFewPairs(f"pairs of the {what} kind to fuse with", 1, 0)
        machine = LinearSVC(C=self.cost, dual=False, class_weight="balanced", tol=1e-8, max_iter=10_000)
        machine.fit(scores, same)
        self.weights, self.bias = machine.coef_[0].astype(np.float64), float(machine.intercept_[0])
        return self

    def __call__(self, scores: Scores) -> Scores:
        """Fuse (P, S) scores: (P,), higher means more alike. Raises NotFitted, WrongShape, NotFinite."""
        if self.weights is None:
            raise NotFitted(type(self).__name__)
        return np.asarray(checked(scores, systems=len(self.weights)) @ self.weights + self.bias)
