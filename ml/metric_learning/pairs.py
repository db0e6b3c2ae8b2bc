"""A budget of pairs drawn once from what is known of a task, with the explicit labels beside them."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ml.embedders.base import TaskData
from ml.types import Ids


@dataclass(frozen=True, eq=False)
class Pool:
    """pairs: (P, 2) indexes into the rows; sign: (P,) +1 same, -1 not; weight: (P,)."""

    pairs: Tensor
    sign: Tensor
    weight: Tensor

    def some(self, chosen: Ids) -> "Pool":
        index = torch.from_numpy(chosen).to(self.pairs.device)
        return Pool(self.pairs[index], self.sign[index], self.weight[index])


def pool(data: TaskData, budget: int, rng: np.random.Generator, device: torch.device, *, apart: float = 0.5) -> Pool:
    """`budget` pairs derived from the values, a share of them `apart`, and all explicit ones, which override.

    A value (a person, an age) is drawn first and then the pair, so that whoever has many photos does not rule.
    """
    pairs, same = derived(data, round(budget * (1 - apart)), round(budget * apart), rng)
    if len(data.pairs) and len(pairs):
        told = keys(data.pairs)
        free = ~np.isin(keys(pairs), told)
        pairs, same = pairs[free], same[free]
    weight = np.concatenate([np.ones(len(pairs), np.float32), data.weights.astype(np.float32)])
    pairs, same = np.concatenate([pairs, data.pairs]), np.concatenate([same, data.same])
    sign = np.where(same, 1, -1).astype(np.float32)
    return Pool(*(torch.from_numpy(part).to(device) for part in (pairs, sign, weight)))


def derived(data: TaskData, mates: int, strangers: int, rng: np.random.Generator) -> tuple[Ids, NDArray[np.bool_]]:
    """So many pairs of the same, and at most so many of not the same, among the faces whose values are known.

    Returns (P, 2) indexes into the rows and (P,) same.
    """
    known = np.flatnonzero(~np.isnan(data.values))
    order = known[np.argsort(data.values[known], kind="stable")]
    values = data.values[order]
    levels, first = np.unique(values, return_index=True)
    low = np.searchsorted(values, levels - data.tolerance, "left")
    high = np.searchsorted(values, levels + data.tolerance, "right")
    counts = np.diff(np.append(first, len(values)))
    shared = np.flatnonzero(high - low > 1)
    empty = np.empty((0, 2), np.int64)
    alike = apart = empty
    if len(shared):
        level = shared[rng.integers(0, len(shared), mates)]
        a = first[level] + rng.integers(0, counts[level])
        b = low[level] + rng.integers(0, high[level] - low[level] - 1)
        alike = np.stack([a, b + (b >= a)], 1)
    if len(levels) > 1:
        level = rng.integers(0, len(levels), (2 * strangers, 2))
        ends = first[level] + rng.integers(0, counts[level])
        apart = ends[np.abs(np.subtract(*values[ends].T)) > data.tolerance][:strangers]
    same = np.repeat([True, False], [len(alike), len(apart)])
    return data.faces[order[np.concatenate([alike, apart])]].reshape(-1, 2), same


def keys(pairs: Ids) -> Ids:
    """One number a pair, whichever face comes first."""
    ends = np.sort(pairs, axis=1)
    return (ends[:, 0] << 32) + ends[:, 1]


def typical(rows: Tensor, pool: Pool, projection: Tensor | None = None, limit: int = 2000) -> float:
    """The median |u|^2, or |L u|^2, of a pool's pairs, alike and apart in their own proportion; never zero."""
    some = torch.linspace(0, len(pool.sign) - 1, min(limit, len(pool.sign)), device=pool.sign.device).long()
    i, j = pool.pairs[some].T
    apart = rows[i] - rows[j] if projection is None else (rows[i] - rows[j]) @ projection.T
    return max(float(apart.square().sum(1).median()), 1e-12)


def scaled(projection: Tensor, rows: Tensor, pool: Pool, distance: float) -> Tensor:
    """The projection times what makes the median squared distance of the pool's pairs `distance`."""
    factor: float = (distance / typical(rows, pool, projection)) ** 0.5
    return torch.mul(projection, factor)
