"""Validate a network on people who are held out of its training."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from ml.cnn_training.crops import LabelledCrops
from ml.descriptors.common.networks import features
from ml.errors import TooFewPairs
from ml.evaluation.retrieval import Faces, average_precisions, n_call, rank
from ml.types import Ids

MIN_PEOPLE = 4


@dataclass(frozen=True, eq=False)
class CropSplit:
    """Which crops are trained on, and which are held out.

    training: (T,) indexes of crops; held_out: (H,) indexes of crops, sorted
    people: (T,) person of each training crop, numbered from 0
    """

    training: Ids
    held_out: Ids
    people: Ids


@dataclass(frozen=True)
class RetrievalScore:
    """How well each held-out photo finds the other photos of its person: mean average precision and 1-call@1, 0..1."""

    map: float
    first: float


def split_crops(data: LabelledCrops, held_out: float, seed: int) -> CropSplit:
    """Hold out a share (0..1) of the people who have two or more photos. Raises TooFewPairs."""
    numbers, counts = np.unique(data.people, return_counts=True)
    eligible = numbers[counts > 1]
    if len(eligible) < MIN_PEOPLE:
        raise TooFewPairs("people with two photos or more", MIN_PEOPLE, len(eligible))
    chosen = np.random.default_rng(seed).permutation(eligible)[: max(2, round(held_out * len(eligible)))]
    is_held_out = np.isin(data.people, chosen)
    training = np.flatnonzero(~is_held_out)
    people = np.unique(data.people[training], return_inverse=True)[1].astype(np.int64)
    return CropSplit(training, np.flatnonzero(is_held_out), people)


def evaluate_network(
    net: nn.Module, data: LabelledCrops, held_out: Ids, projection: Tensor | None = None
) -> RetrievalScore:
    """Score a network on held-out crops. It is evaluated in evaluation mode and then set back to its previous mode.

    held_out: (H,) indexes of crops; projection: (features, dim), applied to the features if given
    """
    was_training = net.training
    rows = features(net.train(False), data.crops[held_out])
    net.train(was_training)
    rows = rows if projection is None else rows @ projection.detach()
    faces = Faces(rows.cpu().numpy(), data.people[held_out].astype(np.float64), held_out)
    ranked = rank(faces, faces)
    return RetrievalScore(float(np.nanmean(average_precisions(ranked))), float(np.nanmean(n_call(ranked, 1))))
