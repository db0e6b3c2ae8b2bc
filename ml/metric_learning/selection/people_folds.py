"""Split a task into folds of whole people, to choose between fits."""

from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.embedders.base import TaskData
from ml.metric_learning.holdout import select_faces
from ml.types import Ids


def number_people(task: TaskData) -> Ids:
    """Return the number of the person of each face of a task, (n,), 0 or more.

    Faces of unknown people that labels call the same are one person, and so are faces that they join to a known one.
    Every other face of an unknown person counts as a person of its own.
    """
    unknown = task.people < 0
    alone = task.people.max(initial=-1) + 1 + np.arange(len(task.people))
    _, number = np.unique(np.where(unknown, alone, task.people), return_inverse=True)
    ends = locate_faces(task.faces, task.pairs[task.same])
    ends = number[ends[unknown[ends].any(axis=1)]]
    count = int(number.max(initial=-1)) + 1
    graph = scipy.sparse.coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(count, count))
    people: Ids = scipy.sparse.csgraph.connected_components(graph, directed=False)[1][number].astype(np.int64)
    return people


def locate_faces(faces: Ids, pairs: Ids) -> Ids:
    """Return the positions of the faces of (P, 2) pairs in (n,) faces, which contain them all: (P, 2)."""
    order = np.argsort(faces, kind="stable")
    located: Ids = order[np.searchsorted(faces, pairs, sorter=order)].reshape(-1, 2)
    return located


def find_matched_faces(task: TaskData) -> NDArray[np.bool_]:
    """Return which faces are known to have another face of the same value or label, (n,)."""
    known = np.sort(task.values[~np.isnan(task.values)])
    low = np.searchsorted(known, task.values - task.tolerance, "left")
    high = np.searchsorted(known, task.values + task.tolerance, "right")
    matched = ~np.isnan(task.values) & (high - low > 1)
    matched[locate_faces(task.faces, task.pairs[task.same]).ravel()] = True
    return matched


def split_into_folds(task: TaskData, folds: int, seed: int) -> Iterator[tuple[TaskData, TaskData]]:
    """Yield for each fold the task without the fold's people, and the task of these people.

    People with matched faces are spread evenly over the folds. Labelled pairs between the two parts are left out.
    """
    people, matched = number_people(task), find_matched_faces(task)
    rng = np.random.default_rng((seed, 6))
    fold_of = np.zeros(int(people.max(initial=-1)) + 1, np.int64)
    with_match = np.unique(people[matched])
    for group in (with_match, np.setdiff1d(people, with_match)):
        fold_of[rng.permutation(group)] = np.arange(len(group)) % folds
    for fold in range(folds):
        inside = fold_of[people] == fold
        yield select_faces(task, ~inside), select_faces(task, inside)
