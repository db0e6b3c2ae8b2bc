"""The interface of a manifold: projection to tangent vectors, retraction, and the gradient in its metric."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor


class Manifold(ABC):
    """A geometry of (n, p) matrices X, n >= p, for descent by `Rsgdm` (001, Table 1).

    Tangent vectors are (n, p). All operations run in the floating precision and on the device of what they are given.
    """

    @abstractmethod
    def project(self, at: Tensor, vector: Tensor, kept: dict[str, Any] | None = None) -> Tensor:
        """Project an (n, p) vector to the nearest tangent (or horizontal) vector at a point. Linear in `vector`.

        kept: a cache that a descent passes from one projection to the next, nearby one. It only saves time.
        """

    @abstractmethod
    def retract(self, at: Tensor, tangent: Tensor) -> Tensor:
        """Return the (n, p) point to which a tangent vector at `at` leads. tangent: a result of `project`."""

    def gradient(self, at: Tensor, euclidean: Tensor) -> Tensor:
        """Convert the partial derivatives (n, p) to the gradient in the manifold's metric; by default, no change."""
        return euclidean
