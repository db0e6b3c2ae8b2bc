"""Cells around means: Lloyd's algorithm from k-means++ seeds."""

import torch
from torch import Tensor

from ml.mixture import seeds


def k_means(z: Tensor, k: int, seed: int = 0, rounds: int = 100) -> Tensor:
    """The means of k cells, (k, d). z: (N, d); of fewer than k rows some stand for several cells, of none all are 0."""
    if len(z) == 0:
        return z.new_zeros(k, z.shape[1])
    if len(z) <= k:
        return z[torch.arange(k, device=z.device) % len(z)]
    means = seeds(z, k, torch.Generator().manual_seed(seed))
    before = torch.full((len(z),), -1, device=z.device)
    for _ in range(rounds):
        cell = nearest(z, means)
        if torch.equal(cell, before):
            break
        before = cell
        size = torch.bincount(cell, minlength=k)[:, None]
        sums = torch.zeros_like(means).index_add_(0, cell, z)
        means = torch.where(size > 0, sums / size.clamp_min(1), means)
    return means


def nearest(z: Tensor, means: Tensor) -> Tensor:
    """Which mean is nearest to each row, the first of those equally near. (N, d), (k, d) -> (N,)."""
    return (means.square().sum(1) - 2 * z @ means.T).argmin(1)
