"""Batches of faces in which a siamese layer mines triplets; explicit labels are mixed in, and override the values."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ml.embedders.base import TaskData
from ml.sampling.base import Sampler
from ml.types import Ids

HALF_HEARD = 50
"""Explicit pairs at which they carry half of the share that they can have."""
PARTNERS = 4
"""Of each face that an explicit pair brings into a batch, how many of its other explicit pairs come along."""
PRESUMED = 16
"""Faces taken at random for strangers, for a face of which nobody said who is not the same."""


@dataclass(frozen=True, eq=False)
class Batch:
    """faces: (B,) indexes into the rows; alike, apart, told: (B, B) bool, the last those labelled "not the same"

    heard: (B, B), the weight of explicit pairs, 0 for all others; share: of the loss that they carry.
    """

    faces: Ids
    alike: Tensor
    apart: Tensor
    told: Tensor
    heard: Tensor
    share: float

    def weights(self, triplets: Tensor) -> Tensor | None:
        """(T, 3) -> (T,), which sum to 1; None where all weigh alike. Explicit is what has an explicit edge."""
        if not self.share:
            return None
        anchor, positive, negative = triplets.T
        heard = self.heard[anchor, positive] + self.heard[anchor, negative]
        derived = (heard == 0).to(heard)
        share = torch.tensor([self.share, 1 - self.share]).to(heard)
        sums = torch.stack([heard.sum(), derived.sum()])
        share = torch.where(sums > 0, share, 0.0)
        each = share / share.sum().clamp_min(1e-12) / sums.clamp_min(1e-12)
        return heard * each[0] + derived * each[1]


@dataclass(eq=False)
class Batches:
    """Draws batches of a task, at least one face of each labelled pair of a random few among them.

    corrections: the share of the loss that explicit pairs carry once there are many of them
    at_once: explicit pairs that a batch begins with, beside derived ones; without those, three times as many
    """

    data: TaskData
    sampler: Sampler
    rng: np.random.Generator
    corrections: float
    at_once: int = 32

    def __post_init__(self) -> None:
        data, found = self.data, len(self.data.pairs)
        self.derives = int((~np.isnan(data.values)).sum()) > 1
        self.next = self.sampler.over(data.values, data.tolerance, self.rng) if self.derives else None
        self.share = self.corrections * found / (found + HALF_HEARD) if self.derives else 1.0
        self.seeds = min(found, self.at_once if self.derives else 3 * self.at_once)
        top = 1 + int(max(data.faces.max(initial=0), data.pairs.max(initial=0)))
        self.value = np.full(top, np.nan)
        self.value[data.faces] = data.values
        self.place = np.full(top, -1, np.int64)  # face -> its place in the batch being made
        ends = np.concatenate([data.pairs, data.pairs[:, ::-1]])
        self.partners = ends[np.argsort(ends[:, 0], kind="stable"), 1]
        self.count = np.bincount(ends[:, 0], minlength=top)

    def draw(self, device: torch.device) -> Batch:
        chosen = self.next() if self.next else np.empty(0, np.int64)
        faces = np.unique(np.concatenate([self.data.faces[chosen], self._labelled()]))
        values = torch.from_numpy(self.value[faces]).to(device)
        gap = (values[:, None] - values).abs()
        alike, apart = gap <= self.data.tolerance, gap > self.data.tolerance
        alike.fill_diagonal_(False)
        told, heard = torch.zeros_like(alike), torch.zeros_like(gap, dtype=torch.float32)
        if self.seeds:
            self._mix(faces, alike, apart, told, heard)
        return Batch(faces, alike, apart, told, heard, self.share)

    def _labelled(self) -> Ids:
        """Faces of a few labelled pairs, and a few partners of each."""
        seeds = self.data.pairs[self.rng.permutation(len(self.data.pairs))[: self.seeds]].ravel()
        first = np.cumsum(self.count) - self.count
        some = first[seeds, None] + self.rng.integers(0, self.count[seeds, None], (len(seeds), PARTNERS))
        return np.concatenate([seeds, self.partners[some].ravel()])

    def _mix(self, faces: Ids, alike: Tensor, apart: Tensor, told: Tensor, heard: Tensor) -> None:
        """Writes every labelled pair whose faces are both here.

        A face with a labelled "not the same" and no fellow is its own positive: the other is to be a margin away. One
        with a fellow and nobody known to be apart has a few faces at random for that.
        """
        self.place[faces] = np.arange(len(faces))
        at = self.place[self.data.pairs]
        self.place[faces] = -1
        here = (at >= 0).all(axis=1)
        i, j = torch.from_numpy(at[here].T).to(alike.device)
        same = torch.from_numpy(self.data.same[here]).to(alike.device)
        weight = torch.from_numpy(self.data.weights[here]).to(heard)
        for a, b in ((i, j), (j, i)):
            alike[a, b], apart[a, b], told[a, b], heard[a, b] = same, ~same, ~same, weight
        alike.diagonal().logical_or_(told.any(1) & ~alike.any(1))
        lonely = torch.nonzero(alike.any(1) & ~apart.any(1))
        some = torch.from_numpy(self.rng.integers(0, len(faces), (len(lonely), PRESUMED))).to(lonely)
        apart[lonely, some] = True
        apart.logical_and_(~alike).fill_diagonal_(False)
