"""Whitened principal components of descriptors, as CoSiM and Sub-SML take them in."""

from typing import Literal

import torch
from torch import Tensor

from ml.metric_learning.pairs import Pool
from ml.metric_learning.tensors import principal

Kind = Literal["within", "all", "none"]


def whitened(rows: Tensor, inner: int, pairs: Pool, seed: int, kind: Kind, prior: float) -> tuple[Tensor, Tensor]:
    """Axes (r, D) and offset (r,) of x = axes row - offset, r <= inner, whose mean square is 1 over the pairs' faces.

    within: in the intra-personal subspace, where a person's own faces vary alike in all directions; n faces that have a
    fellow weigh n : prior against the belief that they vary as all faces do
    all: each coordinate has variance 1 over the pairs' faces
    none: the descriptor as it is, turned: where no axes are left out, its angles stay
    Both of the first have mean 0 over those faces. rows: (N, D), from all of which the principal axes come.
    """
    axes, deviations, mean = principal(rows, min(inner, rows.shape[1], len(rows) - 1), seed)
    seen = rows[torch.unique(pairs.pairs)]
    if kind == "within":
        axes = _intrapersonal((rows - mean) @ axes.T, pairs, prior) @ axes
    elif kind == "all":
        axes = axes / deviations.clamp_min(1e-6 * float(deviations[0]))[:, None]
        axes = axes / ((seen - mean) @ axes.T).std(0).clamp_min(1e-6)[:, None]
    offset = axes @ (torch.zeros_like(mean) if kind == "none" else seen.mean(0))
    spread = torch.addmm(-offset, seen, axes.T).square().mean().sqrt().clamp_min(1e-12)
    return axes / spread, offset / spread


def _intrapersonal(x: Tensor, pairs: Pool, prior: float) -> Tensor:
    """(r, r) that makes the covariance of the differences of the same person the identity. x: (N, r), principal."""
    same = pairs.sign > 0
    first, second = pairs.pairs[same].T
    u = (x[first] - x[second]) * pairs.weight[same, None].sqrt()
    trust = len(torch.unique(torch.cat([first, second])))
    parts = (u.T @ u, trust), (torch.diag(x.square().sum(0)), prior)
    within = sum((share / whole.trace().clamp_min(1e-12)) * whole for whole, share in parts)
    strength, turn = torch.linalg.eigh(within)
    found: Tensor = (turn / strength.clamp_min(1e-6 * strength[-1]).sqrt()).T
    return found
