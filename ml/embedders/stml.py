"""stML: one projection and one bias, learned from pairs by the hinge.

Source: Simonyan et al. 2013; the baseline of 002.
"""

from dataclasses import dataclass

from torch import Tensor

from ml.metric_learning.hinge.embedder import HingeEmbedder
from ml.metric_learning.hinge.projections import Projections


@dataclass
class Stml(HingeEmbedder):
    """z = L x, which minimises sum [1 - y (b - |z_i - z_j|^2)]_+: CP-mtML without a common projection.

    Learns the first task alone. d numbers are stored for a face.
    """

    def _restore(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        return Projections(None, stacks, bias)
