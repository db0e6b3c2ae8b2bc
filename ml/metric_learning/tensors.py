"""Tensor helpers that every learner shares: any device, any floating precision."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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
