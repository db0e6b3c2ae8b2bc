"""What every manifold promises: tangent vectors from any, a way back onto it, the gradient in its own metric."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor


class Manifold(ABC):
    """A geometry of (n, p) matrices X, n >= p, for descent by `Rsgdm` (001, Table 1).

    Tangent vectors are (n, p). All operations run in the floating precision and on the device of what they are given.
    """

    @abstractmethod
    def project(self, at: Tensor, vector: Tensor, kept: dict[str, Any] | None = None) -> Tensor:
        """Any (n, p) -> the tangent (or horizontal) vector next to it in the metric. Linear in `vector`.

        kept: what a descent keeps of one projection for the next, near it; the result is the same to rounding.
        """

    @abstractmethod
    def retract(self, at: Tensor, tangent: Tensor) -> Tensor:
        """The point that a tangent vector leads to. tangent: what `project` gave at this point."""

    def gradient(self, at: Tensor, euclidean: Tensor) -> Tensor:
        """What descends in place of the partial derivatives (n, p): the same, unless the manifold says otherwise."""
        return euclidean
