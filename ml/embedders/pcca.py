"""PCCA: pairwise constrained component analysis, without a kernel (Mignon and Jurie 2012; a baseline of 003)."""

from dataclasses import dataclass

from torch import Tensor

from ml.metric_learning.hinge.projections import Projections
from ml.metric_learning.hinge.soft import Soft
from ml.metric_learning.hinge.tasks import OneTask


@dataclass
class Pcca(OneTask):
    """z = L x, with sum ln(1 + exp(beta y (|z_i - z_j|^2 - b))) / beta as small as it gets over given pairs.

    The threshold b is `distance`, 1 as printed, and stays (bias_rate 0). Learns the first task alone. d numbers are
    stored for a face.

    beta: how sharply a pair that keeps its constraint stops to count
    """

    bias_rate: float = 0.0
    distance: float = 1.0
    beta: float = 3.0

    def _again(self, stacks: list[Tensor], bias: list[float]) -> Projections:
        return Soft(None, stacks, bias, beta=self.beta)
