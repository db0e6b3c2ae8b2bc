"""The Stiefel layer on fixed descriptors: orthonormal directions and their scales, learned from triplets.

Source: 001, section 5.2.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ml.layers.base import Layer
from ml.layers.stiefel import StiefelLayer
from ml.manifolds.stiefel import StiefelManifold
from ml.metric_learning.siamese.embedder import SiameseEmbedder
from ml.options import option


@dataclass
class StiefelEmbedder(SiameseEmbedder):
    """z = S U^T x, U of orthonormal columns by rSGD-M, the diagonal S by RMSProp."""

    rate: float = option(0.03, "eta; a step of 1 is about as large as the map", low=0)
    scale_rate: float = option(0.001, "rate of S, relative to its root mean square", low=0)
    retraction: Literal["qr", "cayley"] = option("qr", "retraction of U to the orthonormal matrices")

    def _make_layer(self, start: Tensor, spread: float) -> tuple[Layer, float, float]:
        layer = StiefelLayer(start, unit=False, manifold=StiefelManifold(self.retraction))
        size = float(layer.s.detach().square().mean().sqrt())
        return layer, self.rate / self.distance, self.scale_rate * size
