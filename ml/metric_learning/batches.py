"""Batches of faces in which every pair has a sign and a weight; explicit labels are mixed into each."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ml.embedders.base import TaskData
from ml.sampling.base import Sampler
from ml.types import Ids

HALF_HEARD = 50
"""Explicit pairs at which they carry half of the share that they can have."""
HALF_TRUSTED = 1000
"""Explicit pairs of not the same at which `negatives` counts half, when nothing else is known."""


@dataclass(frozen=True, eq=False)
class Batch:
    """faces: (B,) indexes into the rows; sign: (B, B) +1 same, -1 not; weight: (B, B), symmetric, sums to 1."""

    faces: Ids
    sign: Tensor
    weight: Tensor


@dataclass(eq=False)
class Batches:
    """Draws batches of a task.

    negatives: weight of all negatives together over that of all positives (spec: it matters more than the rest)
    corrections: the share of the loss that explicit pairs carry once there are many of them
    at_once: explicit pairs in a batch, beside derived ones; without those, five times as many
    """

    data: TaskData
    sampler: Sampler
    rng: np.random.Generator
    negatives: float
    corrections: float
    at_once: int = 64

    def __post_init__(self) -> None:
        known = int((~np.isnan(self.data.values)).sum())
        self.derives = known > 1
        self.next = self.sampler.over(self.data.values, self.data.tolerance, self.rng) if self.derives else None
        found = len(self.data.pairs)
        self.share = self.corrections * found / (found + HALF_HEARD) if self.derives else 1.0
        self.drawn = min(found, self.at_once if self.derives else 5 * self.at_once)
        top = int(max(self.data.faces.max(initial=0), self.data.pairs.max(initial=0)))
        self.place = np.full(top + 1, -1, np.int64)  # face -> its place in the batch being made

    def draw(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Batch:
        chosen = self.next() if self.next else np.empty(0, np.int64)
        alike, apart = self._derived(chosen, device)
        explicit = self.rng.permutation(len(self.data.pairs))[: self.drawn]
        faces = np.concatenate([self.data.faces[chosen], self.data.pairs[explicit].ravel()])
        sign = torch.full((len(faces), len(faces)), -1.0, dtype=dtype, device=device)
        weight = torch.zeros_like(sign)
        n = len(chosen)
        sign[:n, :n] += 2.0 * alike
        weight[:n, :n] = (1 - self.share) * self._balanced(alike, apart, self.negatives, dtype)
        if self.drawn:
            self._mix(explicit, n, sign, weight)
        return Batch(faces, sign, weight)

    def _derived(self, chosen: Ids, device: torch.device) -> tuple[Tensor, Tensor]:
        """Which pairs of these are the same, and which are not; neither where an explicit label overrides."""
        values = torch.from_numpy(self.data.values[chosen]).to(device)
        alike = (values[:, None] - values[None, :]).abs() <= self.data.tolerance
        apart = ~alike
        alike.fill_diagonal_(False)
        if len(self.data.pairs):
            faces = self.data.faces[chosen]
            self.place[faces] = np.arange(len(chosen))
            at = self.place[self.data.pairs]
            self.place[faces] = -1
            first, second = torch.from_numpy(at[(at >= 0).all(axis=1)].T).to(device)
            for mask in (alike, apart):
                mask[first, second] = mask[second, first] = False
        return alike, apart

    def _mix(self, explicit: NDArray[np.int64], n: int, sign: Tensor, weight: Tensor) -> None:
        """Writes the explicit pairs, whose faces stand in the batch from `n` on, two by two."""
        same = torch.from_numpy(self.data.same[explicit]).to(sign.device)
        each = torch.from_numpy(self.data.weights[explicit]).to(weight)
        if not self.derives:
            foes = int((~self.data.same).sum())
            trusted = max(1.0, self.negatives * foes / (foes + HALF_TRUSTED))
            each = each * self._balanced(same, ~same, trusted, weight.dtype)
        each = self.share * each / each.sum().clamp_min(1e-12) / 2
        first = n + 2 * torch.arange(len(explicit), device=sign.device)
        for i, j in ((first, first + 1), (first + 1, first)):
            sign[i, j] = torch.where(same, 1.0, -1.0).to(sign)
            weight[i, j] = each

    @staticmethod
    def _balanced(alike: Tensor, apart: Tensor, negatives: float, dtype: torch.dtype) -> Tensor:
        """Weights that sum to 1, of which the negatives have `negatives` times what the positives have."""
        share = torch.tensor([1.0, negatives], dtype=dtype, device=alike.device)
        counts = torch.stack([alike.sum(), apart.sum()])
        share = torch.where(counts > 0, share, 0.0)
        per_pair = share / share.sum().clamp_min(1e-12) / counts.clamp_min(1)
        return alike * per_pair[0] + apart * per_pair[1]
