"""The generalised logistic loss in the place of the hinge: PCCA (Mignon and Jurie 2012, equation 2)."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import softplus

from ml.metric_learning.hinge.projections import Projections


@dataclass(eq=False)
class Soft(Projections):
    """Loss of a pair: ln(1 + exp(-beta m)) / beta at the margin m; it nears [-m]_+ as beta grows."""

    beta: float = 3.0

    def _loss(self, margin: Tensor) -> tuple[Tensor, Tensor]:
        return softplus(-self.beta * margin) / self.beta, (-self.beta * margin).sigmoid()
