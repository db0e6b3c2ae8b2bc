"""The quotient layer on fixed descriptors: one linear map, learned from triplets up to a rotation.

Source: 001, section 5.1.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ml.layers.base import Layer
from ml.layers.qconv import QConv
from ml.manifolds.quotient import QuotientManifold
from ml.metric_learning.siamese.embedder import SiameseEmbedder
from ml.options import option


@dataclass
class Qconv(SiameseEmbedder):
    """z = L^T x, L known up to a rotation of its columns; rSGD-M on the quotient by rotations."""

    gradient: Literal["euclidean", "metric", "inverse"] = option(
        "euclidean",
        "euclidean: the horizontal part of the derivatives, as in the paper; metric: times L^T L, the gradient in "
        "the metric of the quotient, with larger steps along strong directions; inverse: times the inverse of L^T L, "
        "so that weak directions learn as fast",
    )

    def _make_layer(self, start: Tensor, spread: float) -> tuple[Layer, float, float]:
        rate, strength = self.rate / spread, float(start.square().sum()) / start.shape[1]
        if self.gradient == "euclidean":
            return QConv(start, unit=False), rate, 0.0
        # L^T L or its inverse is then as large as 1 in the mean
        inverse = self.gradient == "inverse"
        manifold = QuotientManifold("inverse" if inverse else "scaled", "metric")
        return QConv(start, unit=False, manifold=manifold), rate * strength if inverse else rate / strength, 0.0
