"""Heads: the losses that are attached to a network during its training."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ml.layers.base import Layer
from ml.layers.qconv import QConv
from ml.layers.stiefel import StiefelLayer
from ml.losses.triplet import Triplet
from ml.mining.semihard import SemiHard

MARGIN_RAMP_SHARE = 0.3
"""Share of the training after which the softmax has its full margin."""
INITIAL_WEIGHT_SD = 0.1
"""SD of the softmax's initial weights. Adam moves a weight by about ten step sizes each time its person is seen. Much
smaller weights would change their direction with every photo."""
LAYERS: dict[str, type[Layer]] = {"qconv": QConv, "stiefel": StiefelLayer}


class MarginHead(nn.Module):
    """The softmax over cosines with a margin: cross-entropy of softmax_j(scale (cos(f, w_j) - margin [j = person])).

    f: a feature; w_j: the weights of person j. A margin of 0 is the plain softmax. `margin_share`, from 0 to 1, raises
    the margin gradually, because a small network does not converge with the full margin from the start.
    Source: Wang et al. 2018 (CosFace), equation 4.
    """

    def __init__(self, dim: int, people: int, margin: float, scale: float) -> None:
        super().__init__()
        self.margin, self.scale, self.margin_share = margin, scale, 1.0
        self.weights = nn.Parameter(torch.randn(people, dim) * INITIAL_WEIGHT_SD)

    def start_from_features(self, rows: Tensor, people: Tensor) -> None:
        """Set each person's weights to the mean of their features (Qi et al. 2018).

        rows: (T, dim) features of a trained network; people: (T,)
        """
        sums = torch.zeros_like(self.weights.data).index_add_(0, people, F.normalize(rows))
        self.weights.data = F.normalize(sums) * INITIAL_WEIGHT_SD * rows.shape[1] ** 0.5

    def prepare_step(self, done: float, generator: torch.Generator) -> None:
        """Set the margin according to the share of the training that is done (0..1). generator: unused."""
        self.margin_share = min(1.0, done / MARGIN_RAMP_SHARE)

    @property
    def projection(self) -> Tensor | None:
        return None

    def forward(self, rows: Tensor, people: Tensor) -> Tensor:
        """Return the loss, (), of (n, dim) features of (n,) people."""
        cosines = F.linear(F.normalize(rows), F.normalize(self.weights))
        cosines = cosines.to(torch.promote_types(cosines.dtype, torch.float32))
        margins = F.one_hot(people, len(self.weights)).to(cosines.dtype) * (self.margin * self.margin_share)
        return F.cross_entropy(self.scale * (cosines - margins), people)


class ContrastiveHead(nn.Module):
    """The supervised contrastive loss: each photo should be nearer to photos of its person than to all others.

    The mean over photos a and photos p of the same person of -log(exp(scale cos_ap) / sum_{b not a} exp(scale cos_ab)).
    It has no parameters per person, so two photos of each person are enough.
    Source: Khosla et al. 2020, equation 2; with two photos per person, Sohn 2016.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def prepare_step(self, done: float, generator: torch.Generator) -> None:
        """Do nothing: every step is alike."""

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
    """The triplet loss (001, equation 12) with semi-hard negatives, over squared distances of z = P^T f / |f|.

    layer: one of `LAYERS`; its matrix P is stored with the network's weights as `projection`
    """

    def __init__(self, layer: Layer, margin: float) -> None:
        super().__init__()
        self.layer, self.loss, self._mine = layer, Triplet(margin), SemiHard()
        self._generator = torch.Generator()

    def prepare_step(self, done: float, generator: torch.Generator) -> None:
        """Use this generator for mining the triplets of the next step. done: unused."""
        self._generator = generator

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
        return self.loss(d2, self._mine(d2.detach(), positives, negatives, self._generator))


class NetworkWithHead(nn.Module):
    """A network with its head: a module that returns the loss."""

    def __init__(self, net: nn.Module, head: MarginHead | ContrastiveHead | TripletHead) -> None:
        super().__init__()
        self.net, self.head = net, head

    def forward(self, faces: Tensor, people: Tensor) -> Tensor:
        """Return the loss, (), of (n, 3, H, W) faces of (n,) people."""
        loss: Tensor = self.head(self.net(faces), people)
        return loss
