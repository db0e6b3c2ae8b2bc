"""The interface of an embedding layer: the last layer of a network, with parameters that may live on a manifold."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ml.errors import WrongShape
from ml.manifolds.common.rsgdm import Rsgdm


class Layer(nn.Module, ABC):
    """The last layer of a siamese network: (B, n) features -> (B, p), compared by squared Euclidean distance.

    start: (n, p) initial matrix, n >= p
    unit: whether features are first divided by their norm, as the paper (001) does with the output of a backbone
    """

    def __init__(self, start: Tensor, unit: bool = True) -> None:
        super().__init__()
        if start.ndim != 2 or start.shape[0] < start.shape[1]:
            raise WrongShape("start", "(n, p) with n >= p", tuple(start.shape))
        self.unit = unit

    def forward(self, features: Tensor) -> Tensor:
        return self.embed(normalize(features) if self.unit else features)

    @abstractmethod
    def embed(self, features: Tensor) -> Tensor:
        """Apply the linear map to (B, n) features: (B, p)."""

    @property
    @abstractmethod
    def matrix(self) -> Tensor:
        """The (n, p) matrix by which `embed` multiplies features."""

    def curved(self) -> Iterator[dict[str, Any]]:
        """The parameter groups for `Rsgdm`: parameters on a manifold, and their manifold. A plain layer has none."""
        yield from ()


def random_start(n: int, p: int, seed: int = 0) -> Tensor:
    """Draw an (n, p) matrix whose columns have unit length on average."""
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed)).div_(n**0.5)


def optimisers(
    model: nn.Module, rate: float, momentum: float = 0.9, backbone_rate: float = 1e-4
) -> list[torch.optim.Optimizer]:
    """Make rSGD-M for the parameters on a manifold, and RMSProp for all others. Step both.

    001 uses RMSProp "for all layers", which would leave the manifold.
    rate, momentum: of rSGD-M; backbone_rate: of RMSProp
    """
    curved = [g for module in model.modules() if isinstance(module, Layer) for g in module.curved()]
    met = {id(p) for g in curved for p in g["params"]}
    flat = [p for p in model.parameters() if id(p) not in met and p.requires_grad]
    created: list[torch.optim.Optimizer] = [Rsgdm(curved, rate, momentum)] if curved else []
    return [*created, torch.optim.RMSprop(flat, lr=backbone_rate)] if flat else created
