"""The layer that knows nothing of the symmetry: what the two manifolds are compared with (001, "Conv")."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ml.layers.base import Layer
from ml.manifolds.flat import FlatManifold


class PlainLayer(Layer):
    """z = L^T f, L anything.

    manifold: `Flat()` has rSGD-M step it, so that nothing but the geometry differs from `QConv`; None leaves it to
    RMSProp, as the paper has it
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
