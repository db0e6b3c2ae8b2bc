"""Principal axes of rows, each of which may concatenate several descriptors."""

import numpy as np
import torch
from torch import Tensor

MIN_DEVIATION = 1e-5
"""Smallest standard deviation of an axis, as a share of the largest, that is more than float32 rounding."""


def compute_block_weights(centred: Tensor, widths: tuple[int, ...]) -> Tensor | None:
    """Compute the (D,) factors that give all descriptors of a row the same variance; None for a single descriptor.

    centred: (n, D), rows minus their mean; widths: widths of the descriptors, which sum to D. The factors keep
    the total variance, and do not change a constant descriptor.
    """
    if len(widths) < 2:
        return None
    ends = np.cumsum(widths).tolist()
    variance = torch.stack([centred[:, e - w : e].square().sum() for e, w in zip(ends, widths, strict=True)])
    varies = variance > 1e-10 * variance.max()
    factor = torch.where(varies, (variance[varies].mean() / variance).sqrt(), 1.0).to(centred)
    return factor.repeat_interleave(torch.tensor(widths, device=centred.device))


def fit_principal_axes(
    rows: Tensor, dim: int, seed: int = 0, sample: int = 4000, rounds: int = 4, widths: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor, Tensor]:
    """Fit principal axes by subspace iteration on a sample of the rows (Halko et al. 2011, algorithm 4.4).

    rows: (N, D); sample: number of rows in the sample; rounds: power iterations
    widths: widths of the descriptors in a row; several are weighted to equal variance first
    Returns the axes (dim, D), largest variance first and orthonormal except for those weights; their standard
    deviations (dim,); the mean (D,).
    """
    generator = torch.Generator().manual_seed(seed)
    mean = rows.mean(0)
    chosen = torch.randperm(len(rows), generator=generator)[:sample].to(rows.device)
    centred = rows[chosen] - mean
    weights = compute_block_weights(centred, widths)
    if weights is not None:
        centred *= weights
    width = min(dim + 16, *centred.shape)
    start = torch.randn(len(centred), width, generator=generator, dtype=rows.dtype).to(rows.device)
    basis = torch.linalg.qr(centred.T @ start)[0]
    for _ in range(rounds):
        basis = torch.linalg.qr(centred.T @ (centred @ basis))[0]
    _, deviations, turn = torch.linalg.svd(centred @ basis, full_matrices=False)
    axes = _fix_signs((basis @ turn.T).T[:dim])
    axes = axes if weights is None else axes * weights
    return axes, deviations[:dim] / max(1, len(centred) - 1) ** 0.5, mean


def whiten_axes(axes: Tensor, deviations: Tensor, floor: float = 0.0) -> Tensor:
    """Divide each of the (r, D) axes by its (r,) standard deviation. An axis along which rows do not vary becomes 0.

    floor: added to each deviation, as a share of the largest
    """
    largest = deviations[0]
    varies = deviations > MIN_DEVIATION * largest
    return axes * torch.where(varies, 1 / (deviations + floor * largest), 0.0)[:, None]


def _fix_signs(axes: Tensor) -> Tensor:
    """Flip each axis so that its largest number is positive; otherwise rounding would determine its sign."""
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return axes * torch.where(largest < 0, -1.0, 1.0).to(axes.dtype)
