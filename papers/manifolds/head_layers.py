"""The heads of 001, and the settings of their training."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ml.layers.base import Layer
from ml.layers.plain import PlainLayer
from ml.layers.qconv import QConv
from ml.layers.stiefel import StiefelLayer
from ml.manifolds.flat import FlatManifold
from ml.manifolds.quotient import QuotientManifold


@dataclass(frozen=True)
class HeadLayer:
    """A head. title: name in tables; make: makes it from its start (n, p), which is the same for all heads of a seed"""

    title: str
    make: Callable[[Tensor], Layer]


HEADS: dict[str, HeadLayer] = {
    "rmsprop": HeadLayer("Conv, by RMSProp", PlainLayer),
    "plain": HeadLayer("Conv", lambda start: PlainLayer(start, manifold=FlatManifold())),
    "qconv": HeadLayer("qConv", QConv),
    "qconv-own": HeadLayer(
        "qConv, gradient of equation 1", lambda s: QConv(s, manifold=QuotientManifold(descends="metric"))
    ),
    "qconv-inverse": HeadLayer(
        "qConv, inverse metric", lambda s: QConv(s, manifold=QuotientManifold("inverse", "metric"))
    ),
    "stiefel": HeadLayer("Stiefel", StiefelLayer),
}
RATES = {"rmsprop": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)} | dict.fromkeys([*HEADS][1:], (0.003, 0.01, 0.03, 0.1, 0.3))
"""The rates tried on an inner split, equally many for each head: RMSProp's rate, or eta of rSGD-M."""
QUICK = {"rmsprop": 1e-3} | dict.fromkeys([*HEADS][1:], 0.03)


@dataclass(frozen=True)
class HeadTraining:
    """The training of a head.

    head: of HEADS, with its rate; fine: rate of RMSProp for all other parameters; margin: tau; steps, batch: N
    photos_per_person: photos of one person in a batch, side by side; 0: all photos in turn
    """

    head: str
    rate: float
    steps: int
    margin: float
    fine: float = 1e-3
    batch: int = 100
    photos_per_person: int = 0
    seed: int = 0

    @property
    def key(self) -> dict[str, Any]:
        """The fields as they appear in the key of a computation."""
        fields = asdict(self)
        fields["each"] = fields.pop("photos_per_person")
        return fields


def choose_rate(errors: Mapping[str, float | None]) -> float:
    """Return the rate with the smallest error; of equal ones, the smallest rate."""
    known = {float(rate): error for rate, error in errors.items() if error is not None}
    return min(known, key=lambda rate: (known[rate], rate))


def describe_matrix(matrix: Tensor) -> dict[str, float]:
    """Describe M = L L^T of a matrix L.

    axes: exp of the entropy of the shares of M's eigenvalues, the effective number of axes of a distance, 1..p
    scale: the trace of M
    """
    strength = torch.linalg.svdvals(matrix).square()
    shares = strength / strength.sum()
    entropy = -(shares * shares.clamp_min(1e-12).log()).sum()
    return {"axes": float(entropy.exp()), "scale": float(strength.sum())}


def flatten_matrix(matrix: Tensor) -> Tensor:
    """Return the matrix with all axes weighted equally: U of L = U S V^T."""
    directions: Tensor = torch.linalg.svd(matrix, full_matrices=False)[0]
    return directions
