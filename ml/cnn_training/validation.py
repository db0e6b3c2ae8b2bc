"""How good a network is, told by people who taught it nothing."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from ml.cnn_training.crops import LabelledCrops
from ml.descriptors.common.networks import features
from ml.errors import TooFewPairs
from ml.evaluation.retrieval import Faces, average_precisions, n_call, rank
from ml.types import Ids


@dataclass(frozen=True, eq=False)
class CropSplit:
    """Photos by their place in the lesson. taught: (T,); held: (H,), sorted; people: (T,) numbered from 0 anew."""

    taught: Ids
    held: Ids
    people: Ids


@dataclass(frozen=True)
class RetrievalScore:
    """Of the held-out photos, each a query among all others: mean average precision and 1-call@1, from 0 to 1."""

    map: float
    first: float


def split(lesson: LabelledCrops, held_out: float, seed: int) -> CropSplit:
    """By person; only those with two photos or more are held out. Raises TooFewPairs."""
    numbers, counts = np.unique(lesson.people, return_counts=True)
    several = numbers[counts > 1]
    if len(several) < 4:
        raise TooFewPairs("people with two photos or more", 4, len(several))
    held = np.random.default_rng(seed).permutation(several)[: max(2, round(held_out * len(several)))]
    out = np.isin(lesson.people, held)
    taught = np.flatnonzero(~out)
    return CropSplit(
        taught, np.flatnonzero(out), np.unique(lesson.people[taught], return_inverse=True)[1].astype(np.int64)
    )


def judged(net: nn.Module, lesson: LabelledCrops, held: Ids, projection: Tensor | None = None) -> RetrievalScore:
    """With the net in evaluation mode, and back in the mode that it was in.

    held: (H,) numbers of photos; projection: (features, dim).
    """
    learning = net.training
    rows = features(net.train(False), lesson.crops[held])
    net.train(learning)
    rows = rows if projection is None else rows @ projection.detach()
    faces = Faces(rows.cpu().numpy(), lesson.people[held].astype(np.float64), held)
    ranked = rank(faces, faces)
    return RetrievalScore(float(np.nanmean(average_precisions(ranked))), float(np.nanmean(n_call(ranked, 1))))
