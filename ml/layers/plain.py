"""The layer that knows nothing of the symmetry: what the two manifolds are compared with (001, "Conv")."""

from torch import Tensor, nn

from ml.layers.base import Layer


class Plain(Layer):
    """z = L^T f, L anything."""

    def __init__(self, start: Tensor, unit: bool = True) -> None:
        super().__init__(start, unit)
        self.weight = nn.Parameter(start.clone())

    def embed(self, features: Tensor) -> Tensor:
        return features @ self.weight

    @property
    def matrix(self) -> Tensor:
        return self.weight
