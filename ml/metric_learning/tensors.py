"""Tensor helpers that every learner shares: any device, any floating precision."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FIRST_MOMENT_DECAY, SECOND_MOMENT_DECAY = 0.9, 0.999
EPSILON = 1e-8


def select_device(name: str) -> torch.device:
    """Return the device of this name; "auto" is the GPU if there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def as_tensor(array: NDArray[Any], device: torch.device | None = None) -> Tensor:
    """Convert an array of any shape (n, ...) to a tensor. It is copied only if it is read-only or changes device."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device or "cpu")


def as_arrays(tensors: dict[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Convert named tensors of any shapes (n, ...) to arrays on the CPU, as an embedder keeps them."""
    return {name: value.cpu().numpy() for name, value in tensors.items()}


def squared_distances(z: Tensor) -> Tensor:
    """Compute the (B, B) squared distances of (B, d) rows; never below zero."""
    norms = (z * z).sum(1)
    return torch.addmm(norms[:, None] + norms[None, :], z, z.T, alpha=-2).clamp_min_(0)


def median_squared_distance(z: Tensor, seed: int = 0, draws: int = 4000) -> float:
    """Return the median of |z_i - z_j|^2 over random pairs of rows of z (B, d); 1 if all rows are equal."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, len(z), draws)
    second = (first + rng.integers(1, max(2, len(z)), draws)) % len(z)
    median = float((z[first] - z[second]).square().sum(1).median())
    return median if median > 0 else 1.0


class FusedAdam:
    """Adam for parameters whose gradients are computed by hand. It changes them in place.

    It calls the same fused kernel as `torch.optim.Adam(fused=True)` and gives the same bits. The classes of
    `torch.optim` import `torch._dynamo`, which takes a second of each process that fits something.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        self._first_moments = [torch.zeros_like(p) for p in self.parameters]
        self._second_moments = [torch.zeros_like(p) for p in self.parameters]
        self._steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]

    def step(self, gradients: Sequence[Tensor], rates: Sequence[float]) -> None:
        """Take one step with the gradient and the rate (n,) of each parameter."""
        torch._foreach_add_(self._steps, 1)
        for at, (parameter, gradient, rate) in enumerate(zip(self.parameters, gradients, rates, strict=True)):
            torch._fused_adam_(
                [parameter],
                [gradient],
                [self._first_moments[at]],
                [self._second_moments[at]],
                [],
                [self._steps[at]],
                lr=rate,
                beta1=FIRST_MOMENT_DECAY,
                beta2=SECOND_MOMENT_DECAY,
                weight_decay=0.0,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
            )
