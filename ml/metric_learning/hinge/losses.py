"""Losses of a pair as functions of its margin y (b - d^2), with their derivatives."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn.functional import softplus


class PairLoss(Protocol):
    def __call__(self, margin: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of (B,) margins and minus their derivatives, (B,) each."""


@dataclass(frozen=True)
class HingeLoss:
    """[1 - m]_+ at the margin m."""

    def __call__(self, margin: Tensor) -> tuple[Tensor, Tensor]:
        hinge = (1 - margin).clamp_min(0)
        return hinge, (hinge > 0).to(margin)


@dataclass(frozen=True)
class SoftHingeLoss:
    """ln(1 + exp(-beta m)) / beta, which nears [-m]_+ as beta grows (Mignon and Jurie 2012, equation 2)."""

    beta: float = 3.0

    def __call__(self, margin: Tensor) -> tuple[Tensor, Tensor]:
        return softplus(-self.beta * margin) / self.beta, (-self.beta * margin).sigmoid()
