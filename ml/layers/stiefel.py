"""The Stiefel layer: an orthonormal projection, then a scale for each number (001, section 5.2)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ml.layers.base import Layer
from ml.manifolds.stiefel import StiefelManifold


class StiefelLayer(Layer):
    """z = S U^T f with U^T U = I and diagonal S, so M = U S^2 U^T. Negative numbers in S do not change distances."""

    def __init__(self, start: Tensor, unit: bool = True, manifold: StiefelManifold | None = None) -> None:
        """Start from any (n, p) matrix: U and S are its singular vectors and values, which preserve its distances."""
        super().__init__(start, unit)
        u, s, _ = torch.linalg.svd(start, full_matrices=False)
        self.u, self.s, self.manifold = nn.Parameter(u.contiguous()), nn.Parameter(s), manifold or StiefelManifold()

    def embed(self, features: Tensor) -> Tensor:
        """Map (B, n) features to (B, p)."""
        return features @ self.u * self.s

    @property
    def matrix(self) -> Tensor:
        return self.u * self.s

    def curved(self) -> Iterator[dict[str, Any]]:
        yield {"params": [self.u], "manifold": self.manifold}
