"""Counting what is labelled, and holding people out of a fit."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ml.embedders.base import TaskData, TrainingSet
from ml.errors import TooFewPairs
from ml.metric_learning.tensors import squared_distances
from ml.types import Ids


def counted(data: TaskData) -> tuple[int, int]:
    """How many pairs are known to be the same, and not the same: derived and explicit together."""
    known = np.sort(data.values[~np.isnan(data.values)])
    reach = np.searchsorted(known, known + data.tolerance, "right")
    same = int((reach - np.arange(len(known)) - 1).sum())
    foes = len(known) * (len(known) - 1) // 2 - same
    return same + int(data.same.sum()), foes + int((~data.same).sum())


def require_pairs(data: TaskData, needed: int) -> None:
    """Raises TooFewPairs where there are fewer than `needed` pairs of either kind."""
    for what, found in zip(("pairs of the same", "pairs of not the same"), counted(data), strict=True):
        if found < needed:
            raise TooFewPairs(f"{what} ({data.task})", needed, found)


def teaching(data: TrainingSet, needed: int, held_out: float, seed: int) -> tuple[TaskData, TaskData]:
    """The first task without the people held out, and those alone. Raises TooFewPairs."""
    if not data.tasks:
        raise TooFewPairs("tasks with labelled pairs", 1, 0)
    task, held = without_people(data.tasks[0], held_out, np.random.default_rng((seed, 1)))
    require_pairs(task, needed)
    return task, held


def watch(embed: Callable[[Ids], Tensor], held: TaskData) -> Callable[[], float] | None:
    """How well the people held out are told apart, each time it is asked; None where nobody is held out.

    embed: indexes of rows (n,) -> z (n, d), as the map stands when it is asked.
    """
    if counted(held)[0] > held.same.sum():
        return lambda: mean_average_precision(embed(held.faces), held.values, held.tolerance)
    if held.same.any() and (~held.same).any():
        return lambda: rightly_ordered(embed(held.faces), held)
    return None


def without_people(data: TaskData, share: float, rng: np.random.Generator) -> tuple[TaskData, TaskData]:
    """The task without a share of its people, and those people alone; nobody is in both.

    A face whose person is unknown counts as a person of its own. A pair goes where both of its faces are.
    """
    alone = -2 - np.arange(len(data.people))
    _, person = np.unique(np.where(data.people < 0, alone, data.people), return_inverse=True)
    held = rng.random(person.max(initial=-1) + 1) < share
    return only(data, ~held[person]), only(data, held[person])


def only(data: TaskData, wanted: NDArray[np.bool_]) -> TaskData:
    kept = np.isin(data.pairs, data.faces[wanted]).all(axis=1)
    return replace(
        data,
        faces=data.faces[wanted],
        values=data.values[wanted],
        people=data.people[wanted],
        pairs=data.pairs[kept],
        same=data.same[kept],
        weights=data.weights[kept],
    )


def mean_average_precision(z: Tensor, values: NDArray[np.float64], tolerance: float, limit: int = 1500) -> float:
    """Each of the first `limit` faces searched among all the others. z: (n, d); 0 where nobody has a fellow."""
    known = torch.from_numpy(np.flatnonzero(~np.isnan(values))).to(z.device)
    numbers = torch.from_numpy(values).to(z.device)[known]
    distances = squared_distances(z[known])[:limit].fill_diagonal_(-1.0)
    order = distances.argsort(dim=1)[:, 1:]  # the face itself comes first and is left out
    relevant = (numbers[order] - numbers[: len(order), None]).abs() <= tolerance
    rank = torch.arange(1, relevant.shape[1] + 1, device=z.device)
    precision = relevant.cumsum(1) / rank
    total = relevant.sum(1)
    found = (precision * relevant).sum(1) / total
    return float(found[total > 0].mean()) if bool((total > 0).any()) else 0.0


def rightly_ordered(z: Tensor, data: TaskData) -> float:
    """The chance that a pair of the same is nearer than one of not the same (AUC). z: one row a face of `data`."""
    place = torch.from_numpy(np.searchsorted(data.faces, data.pairs, sorter=np.argsort(data.faces)))
    order = torch.from_numpy(np.argsort(data.faces))
    ends = z[order[place].to(z.device)]  # (P, 2, d)
    distances = (ends[:, 0] - ends[:, 1]).square().sum(1).cpu()
    same = torch.from_numpy(data.same.copy())
    return float((distances[same][:, None] < distances[~same][None, :]).float().mean())
