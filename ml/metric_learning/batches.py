"""Batches of faces in which labelled pairs are mixed with pairs derived from values."""

from dataclasses import dataclass

import numpy as np

from ml.embedders.base import TaskData
from ml.sampling.base import Sampler
from ml.types import Ids

HALF_SHARE_LABELS = 50
"""With this many labelled pairs, they have half of their largest possible share of the loss."""


def compute_label_share(corrections: float, labels: int) -> float:
    """Return the share of labelled pairs in the loss or the draws; it approaches `corrections` as labels grow."""
    return corrections * labels / (labels + HALF_SHARE_LABELS)


@dataclass(eq=False)
class FaceBatches:
    """Draws the faces of a batch, and the labelled pairs that are mixed into it.

    corrections: the share of labelled pairs in the loss when there are many of them, 0..1
    labels_per_batch: labelled pairs in a batch; without derived pairs, `labels_alone` times as many

    derives: whether pairs can be derived from values; label_share: the share of labelled pairs in the loss
    """

    task: TaskData
    sampler: Sampler
    rng: np.random.Generator
    corrections: float
    labels_per_batch: int
    labels_alone: int

    def __post_init__(self) -> None:
        task, labels = self.task, len(self.task.pairs)
        self.derives = int((~np.isnan(task.values)).sum()) > 1
        self._draw = self.sampler.over(task.values, task.tolerance, self.rng) if self.derives else None
        self.label_share = compute_label_share(self.corrections, labels) if self.derives else 1.0
        self.label_count = min(labels, self.labels_per_batch * (1 if self.derives else self.labels_alone))
        self.face_count = 1 + int(max(task.faces.max(initial=0), task.pairs.max(initial=0)))
        self._position = np.full(self.face_count, -1, np.int64)  # of a face in the batch that is being made

    def draw_faces(self) -> Ids:
        """Draw (B,) positions in the task's faces; none if no pair can be derived."""
        return self._draw() if self._draw else np.empty(0, np.int64)

    def draw_labels(self) -> Ids:
        """Draw (label_count,) indexes of labelled pairs."""
        return self.rng.permutation(len(self.task.pairs))[: self.label_count]

    def locate_labels(self, faces: Ids) -> Ids:
        """Return (P, 2) the positions in a batch of the faces of all labelled pairs, -1 for faces not in it."""
        self._position[faces] = np.arange(len(faces))
        located = self._position[self.task.pairs]
        self._position[faces] = -1
        return located
