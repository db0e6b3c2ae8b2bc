"""Score an embedding by how well it tells held-out people apart. Higher is better."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ml.embedders.base import TaskData
from ml.metric_learning.holdout import count_pairs
from ml.metric_learning.tensors import squared_distances
from ml.types import Ids

Score = Callable[[], float]


def make_score(embed: Callable[[Ids], Tensor], held_out: TaskData | None) -> Score | None:
    """Make a function that scores the current state of a map; None if there are no held-out people to score by.

    embed: maps (n,) indexes of rows to (n, d) embeddings
    """
    if held_out is None:
        return None
    if count_pairs(held_out)[0] > held_out.same.sum():
        return lambda: mean_average_precision(embed(held_out.faces), held_out.values, held_out.tolerance)
    if held_out.same.any() and (~held_out.same).any():
        return lambda: score_labels(embed(held_out.faces), held_out)
    return None


def mean_average_precision(z: Tensor, values: NDArray[np.float64], tolerance: float, limit: int = 1500) -> float:
    """Search for each of the first `limit` faces among all others, and return the mean average precision.

    z: (n, d); values: (n,), NaN if unknown. Returns 0 if no face has another one with the same value.
    """
    known = torch.from_numpy(np.flatnonzero(~np.isnan(values))).to(z.device)
    numbers = torch.from_numpy(values).to(z.device)[known]
    distances = squared_distances(z[known])[:limit].fill_diagonal_(-1.0)
    order = distances.argsort(dim=1)[:, 1:]  # the face itself comes first and is left out
    relevant = (numbers[order] - numbers[: len(order), None]).abs() <= tolerance
    rank = torch.arange(1, relevant.shape[1] + 1, device=z.device)
    precision = relevant.cumsum(1) / rank
    total = relevant.sum(1)
    average = (precision * relevant).sum(1) / total
    return float(average[total > 0].mean()) if bool((total > 0).any()) else 0.0


def score_labels(z: Tensor, task: TaskData) -> float:
    """Return the AUC of the labelled pairs by their distances. z: (n, d), a row for each face of the task."""
    order = np.argsort(task.faces)
    index = torch.from_numpy(order[np.searchsorted(task.faces, task.pairs, sorter=order)]).to(z.device)
    ends = z[index]  # (P, 2, d)
    distances = (ends[:, 0] - ends[:, 1]).square().sum(1)
    return compute_auc(-distances, torch.from_numpy(np.where(task.same, 1.0, -1.0)).to(z.device))


def compute_auc(scores: Tensor, sign: Tensor) -> float:
    """The chance that a pair of the same scores above one that is not; ties count half.

    Pairs are counted before they are divided, so that equally good rankings score the same to the last bit, and a fit
    keeps the first of them. Infinite scores are ordered like any others. scores, sign: (P,).
    """
    positives, negatives = scores[sign > 0], scores[sign <= 0].sort().values
    below, up_to = (torch.searchsorted(negatives, positives, right=right).double().mean() for right in (False, True))
    return float(below + up_to) / 2 / len(negatives)
