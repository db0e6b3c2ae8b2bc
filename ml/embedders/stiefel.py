"""The Stiefel layer on descriptors that stay as they are (001, section 5.2)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ml.embedders._siamese import Siamese
from ml.layers.base import Layer
from ml.layers.stiefel import StiefelLayer
from ml.manifolds.stiefel import StiefelManifold as Manifold


@dataclass
class Stiefel(Siamese):
    """z = S U^T x, U of orthonormal columns by rSGD-M, the diagonal S by RMSProp.

    scale_rate: of S, relative to its root mean square; retraction: how U comes back among orthonormal matrices
    """

    rate: float = 0.03
    scale_rate: float = 0.001
    retraction: Literal["qr", "cayley"] = "qr"

    def _layer(self, start: Tensor, spread: float) -> tuple[Layer, float, float]:
        layer = StiefelLayer(start, unit=False, manifold=Manifold(self.retraction))
        size = float(layer.s.detach().square().mean().sqrt())
        return layer, self.rate / self.distance, self.scale_rate * size
