"""The plain linear layer, without a manifold: the baseline of 001 ("Conv")."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ml.layers.base import Layer
from ml.manifolds.flat import FlatManifold


class PlainLayer(Layer):
    """z = L^T f with an unconstrained L.

    manifold: with `FlatManifold()`, L is stepped by rSGD-M, so that only the geometry differs from `QConv`; with None,
        by RMSProp, as in the paper
    """

    def __init__(self, start: Tensor, unit: bool = True, manifold: FlatManifold | None = None) -> None:
        super().__init__(start, unit)
        self.weight, self.manifold = nn.Parameter(start.clone()), manifold

    def embed(self, features: Tensor) -> Tensor:
        """Map (B, n) features to (B, p)."""
        return features @ self.weight

    @property
    def matrix(self) -> Tensor:
        return self.weight

    def curved(self) -> Iterator[dict[str, Any]]:
        if self.manifold is not None:
            yield {"params": [self.weight], "manifold": self.manifold}
