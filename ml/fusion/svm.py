"""Late fusion: the scores of several systems, weighed by a linear support vector machine (000, section 4.2)."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.errors import NotFitted, TooFewPairs
from ml.fusion.common.scores import Scores, checked


@dataclass
class Svm:
    """w . scores + b, above zero where the pair is taken for the same.

    Convention: as ml.fusion.normalise, whose output is what should come in.

    cost: C, of a pair on the wrong side of its margin; the two classes weigh alike whatever their numbers
    """

    cost: float = 1.0
    weights: Scores | None = field(default=None, init=False, repr=False)
    bias: float = field(default=0.0, init=False, repr=False)

    def fit(self, scores: Scores, same: NDArray[np.bool_]) -> Self:
        """scores: (P, S); same: (P,). Raises WrongShape, NotFinite, TooFewPairs."""
        from sklearn.svm import LinearSVC  # half a second to load

        scores = checked(scores, same)
        for what, count in (("same", int(same.sum())), ("different", int((~same).sum()))):
            if not count:
                raise TooFewPairs(f"pairs of the {what} kind to fuse with", 1, 0)
        machine = LinearSVC(C=self.cost, dual=False, class_weight="balanced", tol=1e-8, max_iter=10_000)
        machine.fit(scores, same)
        self.weights, self.bias = machine.coef_[0].astype(np.float64), float(machine.intercept_[0])
        return self

    def __call__(self, scores: Scores) -> Scores:
        """(P, S) -> (P,), higher is more alike. Raises NotFitted, WrongShape, NotFinite."""
        if self.weights is None:
            raise NotFitted(type(self).__name__)
        return np.asarray(checked(scores, systems=len(self.weights)) @ self.weights + self.bias)
