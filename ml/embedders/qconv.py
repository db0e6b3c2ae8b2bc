"""The quotient layer on descriptors that stay as they are (001, section 5.1)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ml.embedders._siamese import Siamese
from ml.layers.base import Layer
from ml.layers.qconv import QConv
from ml.manifolds.quotient import Quotient


@dataclass
class Qconv(Siamese):
    """z = L^T x, L known up to a rotation of its columns; rSGD-M on the quotient by rotations.

    gradient: "euclidean", the partial derivatives made horizontal, as printed; or "metric", the gradient in the
    geometry's own metric, partial derivatives times L^T L, which steps further along what is strong already
    """

    gradient: Literal["euclidean", "metric"] = "euclidean"

    def _layer(self, start: Tensor, spread: float) -> tuple[Layer, float, float]:
        rate = self.rate / spread
        if self.gradient == "metric":  # L^T L is then as large as 1 in the mean
            rate *= start.shape[1] / float(start.square().sum())
        return QConv(start, unit=False, manifold=Quotient(descends=self.gradient)), rate, 0.0
