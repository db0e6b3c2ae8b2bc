"""k-means: Lloyd's algorithm from k-means++ seeds."""

from math import log

import torch
from torch import Tensor

ROWS_PER_CHUNK = 4096
MAX_SEEDING_ROWS = 20_000


def k_means(z: Tensor, k: int, seed: int = 0, rounds: int = 100) -> Tensor:
    """Return the means of k clusters of z (N, d): (k, d). If N < k, some repeat; if N = 0, all are 0."""
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
        size, sums = members(cell, k, z)
        means = torch.where(size[:, None] > 0, sums / size.clamp_min(1)[:, None], means)
    return means


def nearest(z: Tensor, means: Tensor) -> Tensor:
    """Return the nearest mean of each row, the first of equally near ones: (N, d), (k, d) -> (N,)."""
    square = means.square().sum(1)
    return torch.cat(
        [torch.addmm(square, part, means.T, alpha=-2).argmin(1) for part in torch.split(z, ROWS_PER_CHUNK)]
    )


def members(cell: Tensor, k: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of rows in each cluster, (k,), and their sums, (k, r). cell: (N,) of 0..k - 1; rows: (N, r)"""
    size, sums = rows.new_zeros(k), rows.new_zeros(k, rows.shape[1])
    return size.index_add_(0, cell, rows.new_ones(len(rows))), sums.index_add_(0, cell, rows)


def seeds(z: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Choose k seeds by greedy k-means++: (N, d) -> (k, d).

    Several candidates are drawn with probability proportional to their squared distance from the seeds so far, and the
    one that reduces the sum most is kept. Without this choice, EM often ends in a much less likely mixture.
    """
    if len(z) > MAX_SEEDING_ROWS:
        z = z[torch.randperm(len(z), generator=generator)[:MAX_SEEDING_ROWS].to(z.device)]
    chosen = [int(torch.randint(len(z), (1,), generator=generator))]
    nearest = (z - z[chosen[0]]).square().sum(1)
    tries = 2 + int(log(k))
    while len(chosen) < k:
        candidates = torch.multinomial(nearest.cpu() + 1e-12, tries, replacement=True, generator=generator).to(z.device)
        within = torch.minimum(nearest, torch.cdist(z[candidates], z).square())
        best = int(within.sum(1).argmin())
        chosen.append(int(candidates[best]))
        nearest = within[best]
    return z[chosen]
