"""What is known about the faces of a training, task by task."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.types import Ids, Rows


@dataclass(frozen=True, eq=False)
class TaskExamples:
    """What is known for one task about the N faces of a training.

    member: (N,) whether the task is learned from the face
    values: (N,) float64 to learn from, NaN unknown
    truth: (N,) what a report measures by: the values, or the subjects where identity is learned from labels alone
    tolerance: values that differ by at most this are the same
    derived: where the values come from, `labels` where there are only labels
    pairs: (P, 2) indices of faces; same: (P,); weights: (P,): the consensus of the labels
    unsettled: labelled pairs without consensus
    max_pairs: how many pairs of the values to draw; None for all
    """

    task: str
    member: NDArray[np.bool_]
    values: NDArray[np.float64]
    truth: NDArray[np.float64]
    tolerance: float
    derived: str
    pairs: Ids
    same: NDArray[np.bool_]
    weights: Rows
    unsettled: int
    max_pairs: int | None
