"""PCCA: pairwise constrained component analysis, without a kernel.

Source: Mignon and Jurie 2012; a baseline of 003.
"""

from dataclasses import dataclass

from torch import Tensor

from ml.metric_learning.hinge.embedder import HingeEmbedder
from ml.metric_learning.hinge.losses import SoftHingeLoss
from ml.metric_learning.hinge.projections import Projections
from ml.options import option


@dataclass
class Pcca(HingeEmbedder):
    """z = L x, which minimises sum ln(1 + exp(beta y (|z_i - z_j|^2 - b))) / beta over given pairs.

    The threshold b is `distance`, 1 in the paper, and is not learned (bias_rate 0). Learns the first task alone.
    d numbers are stored for a face.
    """

    bias_rate: float = option(0.0, "rate of the threshold b over `rate`; 0 in the paper", low=0)
    distance: float = option(1.0, "the start is scaled to this median d^2, and b starts there too", low=0)
    beta: float = option(3.0, "sharpness of the loss: the higher, the closer it is to a hinge", low=0)

    def _restore(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        return Projections(None, stacks, bias, SoftHingeLoss(self.beta))
