"""The flat space of matrices: the baseline for the two manifolds."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ml.manifolds.base import Manifold


@dataclass(frozen=True)
class FlatManifold(Manifold):
    """R^{n x p}, on which rSGD-M is ordinary stochastic gradient descent with momentum."""

    def project(self, at: Tensor, vector: Tensor, kept: dict[str, Any] | None = None) -> Tensor:
        return vector

    def retract(self, at: Tensor, tangent: Tensor) -> Tensor:
        """Add the (n, p) vector to the (n, p) point."""
        return at + tangent
