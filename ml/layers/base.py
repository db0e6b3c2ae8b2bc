"""What every embedding layer promises: it can stand behind a network, and tells which of its parameters are curved."""

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

    start: (n, p), what it maps by at first, n >= p
    unit: whether features are brought to unit length before, as the paper does with a backbone's output
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
        """The linear map alone."""

    @property
    @abstractmethod
    def matrix(self) -> Tensor:
        """(n, p), for which `embed` is features @ matrix."""

    def curved(self) -> Iterator[dict[str, Any]]:
        """Groups for `Rsgdm`: the parameters that live on a manifold, and which. None in a plain layer."""
        yield from ()


def random_start(n: int, p: int, seed: int = 0) -> Tensor:
    """(n, p) whose columns are of unit length in the mean."""
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed)).div_(n**0.5)


def optimisers(
    model: nn.Module, rate: float, momentum: float = 0.9, backbone_rate: float = 1e-4
) -> list[torch.optim.Optimizer]:
    """rSGD-M for what lives on a manifold, RMSProp for all the rest: the paper asks RMSProp "for all layers", which
    would leave the manifold. Step both. Schedulers take either.
    """
    curved = [g for module in model.modules() if isinstance(module, Layer) for g in module.curved()]
    met = {id(p) for g in curved for p in g["params"]}
    flat = [p for p in model.parameters() if id(p) not in met and p.requires_grad]
    created: list[torch.optim.Optimizer] = [Rsgdm(curved, rate, momentum)] if curved else []
    return [*created, torch.optim.RMSprop(flat, lr=backbone_rate)] if flat else created
