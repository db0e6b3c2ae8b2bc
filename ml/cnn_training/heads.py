"""What stands behind the network while it learns: a softmax over the people it learns from, with a margin."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Margin(nn.Module):
    """Cross entropy of softmax_j(scale (cos(f, w_j) - margin [j = whose])): (n, dim) features, (n,) people -> a number.

    margin 0 is the plain softmax over cosines. Source: Wang et al. 2018 (CosFace), equation 4. `ease` from 0 to 1 lets
    the margin in gradually: from the first step on, a small net does not find its way.
    """

    def __init__(self, dim: int, people: int, margin: float, scale: float) -> None:
        super().__init__()
        self.margin, self.scale, self.ease = margin, scale, 1.0
        self.weights = nn.Parameter(torch.randn(people, dim) * 0.01)

    def forward(self, rows: Tensor, people: Tensor) -> Tensor:
        cosines = F.linear(F.normalize(rows), F.normalize(self.weights))
        cosines = cosines.to(torch.promote_types(cosines.dtype, torch.float32))
        less = F.one_hot(people, len(self.weights)).to(cosines.dtype) * (self.margin * self.ease)
        return F.cross_entropy(self.scale * (cosines - less), people)


class Taught(nn.Module):
    """A network and its head, as one thing that gives a loss."""

    def __init__(self, net: nn.Module, head: Margin) -> None:
        super().__init__()
        self.net, self.head = net, head

    def forward(self, faces: Tensor, people: Tensor) -> Tensor:
        loss: Tensor = self.head(self.net(faces), people)
        return loss
