"""The quotient layer (001, section 5.1)."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ml.layers.base import Layer
from ml.manifolds.quotient import QuotientManifold


class QConv(Layer):
    """z = L^T f with L of full rank, where L and its rotations L R are the same point of the manifold."""

    def __init__(self, start: Tensor, unit: bool = True, manifold: QuotientManifold | None = None) -> None:
        super().__init__(start, unit)
        self.weight, self.manifold = nn.Parameter(start.clone()), manifold or QuotientManifold()

    def embed(self, features: Tensor) -> Tensor:
        """Map (B, n) features to (B, p)."""
        return features @ self.weight

    @property
    def matrix(self) -> Tensor:
        return self.weight

    def curved(self) -> Iterator[dict[str, Any]]:
        yield {"params": [self.weight], "manifold": self.manifold}
