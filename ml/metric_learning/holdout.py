"""Count labelled pairs, and hold people out of a fit."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import TaskData, TrainingSet
from ml.errors import TooFewPairs
from ml.types import Ids


def count_pairs(task: TaskData) -> tuple[int, int]:
    """Count the pairs known to be the same, and not the same: derived from values and labelled ones together."""
    known = np.sort(task.values[~np.isnan(task.values)])
    upper = np.searchsorted(known, known + task.tolerance, "right")
    same = int((upper - np.arange(len(known)) - 1).sum())
    different = len(known) * (len(known) - 1) // 2 - same
    return same + int(task.same.sum()), different + int((~task.same).sum())


def count_matched_faces(task: TaskData) -> int:
    """Count the faces that are known to have another face with the same value."""
    known = np.sort(task.values[~np.isnan(task.values)])
    low = np.searchsorted(known, known - task.tolerance, "left")
    high = np.searchsorted(known, known + task.tolerance, "right")
    return int((high - low > 1).sum()) + len(np.unique(task.pairs[task.same]))


def scale_proximal_weight(weight: float, prior: float, task: TaskData) -> float:
    """Scale the weight of the pull towards the start by prior / n for n matched faces, so that it fades with labels."""
    return weight * prior / max(1, count_matched_faces(task))


def require_task(data: TrainingSet) -> TaskData:
    """Return the first task. Raises TooFewPairs if there is none."""
    if not data.tasks:
        raise TooFewPairs("tasks with labelled pairs", 1, 0)
    return data.tasks[0]


def require_pairs(task: TaskData, minimum: int) -> None:
    """Raise TooFewPairs if fewer than `minimum` pairs are the same, or not the same."""
    for kind, count in zip(("pairs of the same", "pairs of not the same"), count_pairs(task), strict=True):
        if count < minimum:
            raise TooFewPairs(f"{kind} ({task.task})", minimum, count)


def select_faces(task: TaskData, wanted: NDArray[np.bool_]) -> TaskData:
    """Return the task with only some of its faces, and the labels between them. wanted: (n,) bool for each face."""
    kept = np.isin(task.pairs, task.faces[wanted]).all(axis=1)
    return replace(
        task,
        faces=task.faces[wanted],
        values=task.values[wanted],
        people=task.people[wanted],
        pairs=task.pairs[kept],
        same=task.same[kept],
        weights=task.weights[kept],
    )


def split_by_person(task: TaskData, share: float, rng: np.random.Generator) -> tuple[TaskData, TaskData]:
    """Split a task by person: the task without a random share of its people, and the task of those people.

    Each face of an unknown person counts as a person of its own. A labelled pair goes to the part that has both of its
    faces; if they are in different parts, it is dropped.
    """
    alone = -2 - np.arange(len(task.people))
    _, person = np.unique(np.where(task.people < 0, alone, task.people), return_inverse=True)
    held_out = rng.random(person.max(initial=-1) + 1) < share
    return select_faces(task, ~held_out[person]), select_faces(task, held_out[person])


def split_training_set(data: TrainingSet, min_pairs: int, share: float, seed: int) -> tuple[TaskData, TaskData]:
    """Split the first task by person into training and held-out people. Raises TooFewPairs."""
    kept, held_out = split_by_person(require_task(data), share, np.random.default_rng((seed, 1)))
    require_pairs(kept, min_pairs)
    return kept, held_out


def split_known_people(tasks: Sequence[TaskData], share: float, seed: int) -> tuple[tuple[TaskData, ...], TaskData]:
    """Remove a share of the first task's known people from every task; return also the first task of those people."""
    first = tasks[0]
    people = np.unique(first.people[first.people >= 0])
    chosen = people[np.random.default_rng((seed, 1)).random(len(people)) < share]
    kept = tuple(select_faces(task, ~np.isin(task.people, chosen)) for task in tasks)
    return kept, select_faces(first, np.isin(first.people, chosen))


def shuffle_people(task: TaskData, seed: int) -> Ids:
    """Return all known people in random order, (people,). The first ones are held out."""
    return np.random.default_rng((seed, 1)).permutation(np.unique(task.people[task.people >= 0]))
