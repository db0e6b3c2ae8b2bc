"""What stands behind the network while it learns."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ml.layers.base import Layer
from ml.layers.qconv import QConv
from ml.layers.stiefel import StiefelLayer
from ml.losses.triplet import Triplet
from ml.mining.semihard import SemiHard

EASED = 0.3
"""Part of the training after which the margin of the softmax is whole."""
START = 0.1
"""SD of the softmax's weights at first. Adam moves a weight by about ten step sizes each time its person is seen: from
much smaller ones it would turn a person's vector about at every photo."""
LAYERS: dict[str, type[Layer]] = {"qconv": QConv, "stiefel": StiefelLayer}


class MarginHead(nn.Module):
    """Cross entropy of softmax_j(scale (cos(f, w_j) - margin [j = whose])): (n, dim) features, (n,) people -> a number.

    margin 0 is the plain softmax over cosines. Source: Wang et al. 2018 (CosFace), equation 4. `ease` from 0 to 1 lets
    the margin in gradually: from the first step on, a small net does not find its way.
    """

    def __init__(self, dim: int, people: int, margin: float, scale: float) -> None:
        super().__init__()
        self.margin, self.scale, self.ease = margin, scale, 1.0
        self.weights = nn.Parameter(torch.randn(people, dim) * START)

    def imprint(self, rows: Tensor, people: Tensor) -> None:
        """Begins with each person's mean feature (Qi et al. 2018). rows: (T, dim), of a net that has learned."""
        sums = torch.zeros_like(self.weights.data).index_add_(0, people, F.normalize(rows))
        self.weights.data = F.normalize(sums) * START * rows.shape[1] ** 0.5

    def ready(self, done: float, draw: torch.Generator) -> None:
        """Let the margin in as far as the training has come (0 to 1). draw: unused."""
        self.ease = min(1.0, done / EASED)

    @property
    def projection(self) -> Tensor | None:
        return None

    def forward(self, rows: Tensor, people: Tensor) -> Tensor:
        """Return the loss, (), of (n, dim) features of (n,) people."""
        cosines = F.linear(F.normalize(rows), F.normalize(self.weights))
        cosines = cosines.to(torch.promote_types(cosines.dtype, torch.float32))
        less = F.one_hot(people, len(self.weights)).to(cosines.dtype) * (self.margin * self.ease)
        return F.cross_entropy(self.scale * (cosines - less), people)


class ContrastiveHead(nn.Module):
    """Each photo is to be nearer to those of its person than to all others of the batch, by a softmax over cosines.

    mean over photos a and those p of the same person of -log exp(scale cos_ap) / sum_{b not a} exp(scale cos_ab)
    Source: Khosla et al. 2020 (supervised contrastive learning), equation 2; with two photos a person Sohn 2016.
    Nothing is kept for a person, so that two photos of each are enough to learn from.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def ready(self, done: float, draw: torch.Generator) -> None:
        """The same at every step."""

    @property
    def projection(self) -> Tensor | None:
        return None

    def forward(self, rows: Tensor, people: Tensor) -> Tensor:
        """Return the loss, (), of (n, dim) features of (n,) people."""
        rows = F.normalize(rows.to(torch.promote_types(rows.dtype, torch.float32)))
        itself = torch.eye(len(rows), dtype=torch.bool, device=rows.device)
        chances = (self.scale * rows @ rows.T).masked_fill(itself, -torch.inf).log_softmax(1)
        positives = (people[:, None] == people) & ~itself
        return -chances[positives].mean()


class TripletHead(nn.Module):
    """The triplet loss (001, equation 12) over semi-hard negatives, of squared distances of z = P^T f / |f|.

    layer: of `LAYERS`; its matrix P goes beside the weights as `projection`.
    """

    def __init__(self, layer: Layer, margin: float) -> None:
        super().__init__()
        self.layer, self.loss, self.mine = layer, Triplet(margin), SemiHard()
        self.draw = torch.Generator()

    def ready(self, done: float, draw: torch.Generator) -> None:
        """Mine the triplets of the next step by these random numbers. done: unused."""
        self.draw = draw

    @property
    def projection(self) -> Tensor | None:
        return self.layer.matrix

    def forward(self, rows: Tensor, people: Tensor) -> Tensor:
        """Return the loss, (), of (n, dim) features of (n,) people."""
        z = self.layer(rows.to(torch.promote_types(rows.dtype, torch.float32)))
        d2 = (z[:, None] - z).square().sum(2)
        positives = people[:, None] == people
        negatives = ~positives
        positives = positives & ~torch.eye(len(people), dtype=torch.bool, device=people.device)
        return self.loss(d2, self.mine(d2.detach(), positives, negatives, self.draw))


class NetworkWithHead(nn.Module):
    """A network and its head, as one thing that gives a loss."""

    def __init__(self, net: nn.Module, head: MarginHead | ContrastiveHead | TripletHead) -> None:
        super().__init__()
        self.net, self.head = net, head

    def forward(self, faces: Tensor, people: Tensor) -> Tensor:
        """Return the loss, (), of (n, 3, H, W) faces of (n,) people."""
        loss: Tensor = self.head(self.net(faces), people)
        return loss
