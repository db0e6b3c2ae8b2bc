"""Batches of faces for mining triplets. Labelled pairs are mixed in, and override the values."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ml.metric_learning.batches import FaceBatches
from ml.types import Ids

PARTNERS_PER_FACE = 4
"""For each face that a labelled pair brings into a batch, this many of its other labelled pairs are added."""
PRESUMED_NEGATIVES = 16
"""Random faces that serve as negatives for a face without a "not the same" label."""


@dataclass(frozen=True, eq=False)
class MiningBatch:
    """faces: (B,) indexes into the rows

    positives, negatives, labelled_negatives: (B, B) bool
    label_weight: (B, B) the weight of labelled pairs, 0 for all others; label_share: share of the loss they carry
    """

    faces: Ids
    positives: Tensor
    negatives: Tensor
    labelled_negatives: Tensor
    label_weight: Tensor
    label_share: float

    def weigh(self, triplets: Tensor) -> Tensor | None:
        """Return the (T,) weights of (T, 3) triplets, which sum to 1; None if all weigh alike.

        A triplet counts as labelled if one of its pairs is.
        """
        if not self.label_share:
            return None
        anchor, positive, negative = triplets.T
        labelled = self.label_weight[anchor, positive] + self.label_weight[anchor, negative]
        derived = (labelled == 0).to(labelled)
        share = torch.tensor([self.label_share, 1 - self.label_share]).to(labelled)
        sums = torch.stack([labelled.sum(), derived.sum()])
        share = torch.where(sums > 0, share, 0.0)
        factor = share / share.sum().clamp_min(1e-12) / sums.clamp_min(1e-12)
        return labelled * factor[0] + derived * factor[1]


@dataclass(eq=False)
class MiningBatches(FaceBatches):
    """At least one face of each of a few random labelled pairs is in every batch."""

    labels_per_batch: int = 32
    labels_alone: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        task = self.task
        self.value = np.full(self.face_count, np.nan)
        self.value[task.faces] = task.values
        ends = np.concatenate([task.pairs, task.pairs[:, ::-1]])
        self.partners = ends[np.argsort(ends[:, 0], kind="stable"), 1]
        self.partner_count = np.bincount(ends[:, 0], minlength=self.face_count)

    def draw(self, device: torch.device) -> MiningBatch:
        """Draw the faces of the next batch, and label their pairs."""
        chosen = self.draw_faces()
        faces = np.unique(np.concatenate([self.task.faces[chosen], self._draw_labelled_faces()]))
        values = torch.from_numpy(self.value[faces]).to(device)
        gap = (values[:, None] - values).abs()
        positives, negatives = gap <= self.task.tolerance, gap > self.task.tolerance
        positives.fill_diagonal_(False)
        labelled_negatives = torch.zeros_like(positives)
        label_weight = torch.zeros_like(gap, dtype=torch.float32)
        batch = MiningBatch(faces, positives, negatives, labelled_negatives, label_weight, self.label_share)
        if self.label_count:
            self._mix(batch)
        return batch

    def _draw_labelled_faces(self) -> Ids:
        """Draw the faces of a few labelled pairs, and a few partners of each."""
        seeds = self.task.pairs[self.draw_labels()].ravel()
        first = np.cumsum(self.partner_count) - self.partner_count
        offsets = self.rng.integers(0, self.partner_count[seeds, None], (len(seeds), PARTNERS_PER_FACE))
        return np.concatenate([seeds, self.partners[(first[seeds, None] + offsets).ravel()]])

    def _mix(self, batch: MiningBatch) -> None:
        """Write every labelled pair whose faces are both in the batch.

        A face with a labelled negative and no positive becomes its own positive, so the negative should be a margin
        away. A face with a positive and no negative gets a few random faces as negatives.
        """
        positives, negatives, labelled_negatives = batch.positives, batch.negatives, batch.labelled_negatives
        located = self.locate_labels(batch.faces)
        inside = (located >= 0).all(axis=1)
        i, j = torch.from_numpy(located[inside].T).to(positives.device)
        same = torch.from_numpy(self.task.same[inside]).to(positives.device)
        weight = torch.from_numpy(self.task.weights[inside]).to(batch.label_weight)
        for a, b in ((i, j), (j, i)):
            positives[a, b], negatives[a, b], labelled_negatives[a, b] = same, ~same, ~same
            batch.label_weight[a, b] = weight
        positives.diagonal().logical_or_(labelled_negatives.any(1) & ~positives.any(1))
        alone = torch.nonzero(positives.any(1) & ~negatives.any(1))
        presumed = torch.from_numpy(self.rng.integers(0, len(batch.faces), (len(alone), PRESUMED_NEGATIVES))).to(alone)
        negatives[alone, presumed] = True
        negatives.logical_and_(~positives).fill_diagonal_(False)
