"""Arithmetic that every learner of pairs shares: torch, any device, any floating precision."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus


def device_of(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def tensor(array: NDArray[Any], device: torch.device | None = None) -> Tensor:
    """The array as a tensor, without a copy where it can be written to and is already there."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device or "cpu")


def squared_distances(z: Tensor) -> Tensor:
    """(B, d) -> (B, B), never below zero."""
    norms = (z * z).sum(1)
    return torch.addmm(norms[:, None] + norms[None, :], z, z.T, alpha=-2).clamp_min_(0)


def logistic(z: Tensor, bias: Tensor, sign: Tensor, weight: Tensor) -> tuple[float, Tensor, Tensor]:
    """LDML's loss over all ordered pairs of a batch, with its gradient as a graph Laplacian (003, equation 5).

    sum_ij w_ij ln(1 + exp(-y_ij (b - |z_i - z_j|^2)))
    z: (B, d); bias: (); sign: (B, B) of -1 and +1; weight: (B, B), symmetric like sign.
    Returns the loss, its gradient by z (B, d) and by the bias ().
    """
    margin = sign * (bias - squared_distances(z))
    pull = weight * sign * torch.sigmoid(-margin)  # the loss by each squared distance
    by_z = 4 * (pull.sum(1, keepdim=True) * z - pull @ z)
    return float((weight * softplus(-margin)).sum()), by_z, -pull.sum()


def median_squared_distance(z: Tensor, seed: int = 0, draws: int = 4000) -> float:
    """The median of |z_i - z_j|^2 over random pairs of different rows; 1 where all of them coincide."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, len(z), draws)
    second = (first + rng.integers(1, max(2, len(z)), draws)) % len(z)
    median = float((z[first] - z[second]).square().sum(1).median())
    return median if median > 0 else 1.0


def balance(centred: Tensor, widths: tuple[int, ...]) -> Tensor | None:
    """What each number of a row is multiplied by so that all of its descriptors vary alike, whatever their units.

    centred: (n, D) rows less their mean; widths: of the descriptors, their sum D. Returns (D,), with which rows vary as
    much in all as without, and a descriptor that does not vary stays as it is; None where there is one descriptor.
    """
    if len(widths) < 2:
        return None
    ends = np.cumsum(widths).tolist()
    spread = torch.stack([centred[:, e - w : e].square().sum() for e, w in zip(ends, widths, strict=True)])
    varies = spread > 1e-10 * spread.max()
    factor = torch.where(varies, (spread[varies].mean() / spread).sqrt(), 1.0).to(centred)
    return factor.repeat_interleave(torch.tensor(widths, device=centred.device))


def principal(
    rows: Tensor, dim: int, seed: int = 0, sample: int = 4000, rounds: int = 4, widths: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    """The principal axes by subspace iteration on a sample (Halko et al. 2011, algorithm 4.4).

    rows: (N, D); sample: how many rows the axes are computed from; rounds: power iterations; widths: of the descriptors
    in a row; several are weighted so that they vary alike.
    Returns axes (dim, D), orthonormal but for those weights, largest variance first; their standard deviations (dim,);
    the mean (D,).
    """
    generator = torch.Generator().manual_seed(seed)
    mean = rows.mean(0)
    chosen = torch.randperm(len(rows), generator=generator)[:sample].to(rows.device)
    centred = rows[chosen] - mean
    weights = balance(centred, widths)
    if weights is not None:
        centred *= weights
    width = min(dim + 16, *centred.shape)
    start = torch.randn(len(centred), width, generator=generator, dtype=rows.dtype).to(rows.device)
    basis = torch.linalg.qr(centred.T @ start)[0]
    for _ in range(rounds):
        basis = torch.linalg.qr(centred.T @ (centred @ basis))[0]
    _, deviations, turn = torch.linalg.svd(centred @ basis, full_matrices=False)
    axes = _upright((basis @ turn.T).T[:dim])
    axes = axes if weights is None else axes * weights
    return axes, deviations[:dim] / max(1, len(centred) - 1) ** 0.5, mean


def _upright(axes: Tensor) -> Tensor:
    """Each axis turned so that its largest number is positive: rounding does not choose its sign."""
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return axes * torch.where(largest < 0, -1.0, 1.0).to(axes.dtype)
