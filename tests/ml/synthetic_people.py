"""Synthetic descriptors: a few numbers depend on the person, others are noise of a larger scale."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from ml.embedders.base import TaskData, TrainingSet


def people(count: int = 60, photos: int = 5, seed: int = 0, informative: int = 8, noise: int = 22) -> TrainingSet:
    """Return training data of the task identity: (count * photos, informative + noise) rows.

    informative: how many numbers depend on the person; noise: how many do not
    """
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(count), photos)
    rows = rng.normal(size=(len(person), informative + noise)) * np.repeat([0.6, 2.0], [informative, noise])
    rows[:, :informative] += rng.normal(size=(count, informative))[person]
    return TrainingSet(rows.astype(np.float32), (identity(person),))


def identity(person: NDArray[np.int64], **labels: NDArray[np.generic]) -> TaskData:
    return TaskData("identity", np.arange(len(person)), person * 1.0, person, **labels)  # type: ignore[arg-type]


def corrected(data: TrainingSet, pairs: NDArray[np.int64], same: bool) -> TrainingSet:
    """The same data with explicit labels for these pairs, (n, 2) rows, added to what the values say."""
    [task] = data.tasks
    count = len(pairs)
    labels = {"pairs": pairs, "same": np.full(count, same), "weights": np.ones(count, np.float32)}
    return TrainingSet(data.rows, (replace(task, **labels),))


def contradicted(data: TrainingSet, same: bool) -> tuple[TrainingSet, NDArray[np.int64]]:
    """Data of `people()` with thirty explicit labels that contradict the values, and their (30, 2) pairs.

    same: whether the labels say that the pairs are of the same person
    """
    first = np.random.default_rng(0).permutation(60)[:30] * 5  # five photos each
    pairs = np.stack([first, (first + 5) % 300 if same else first + 1], 1)
    return corrected(data, pairs, same), pairs


def labels_alone(data: TrainingSet) -> TrainingSet:
    """The same rows without values, with labels for 400 pairs of the same and 400 of different people."""
    person = data.tasks[0].people
    pairs = np.random.default_rng(0).integers(0, len(person), (200_000, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    same = person[pairs[:, 0]] == person[pairs[:, 1]]
    chosen = np.concatenate([np.flatnonzero(same)[:400], np.flatnonzero(~same)[:400]])
    task = identity(person, pairs=pairs[chosen], same=same[chosen], weights=np.ones(800, np.float32))
    return TrainingSet(data.rows, (replace(task, values=np.full(len(person), np.nan)),))


def relative(z: NDArray[np.float32], pairs: NDArray[np.int64]) -> float:
    """The mean squared distance of these pairs, divided by that of all pairs."""
    return float(((z[pairs[:, 0]] - z[pairs[:, 1]]) ** 2).sum(1).mean() / (2 * z.var(0).sum()))


def nearest_is_alike(z: NDArray[np.float32], person: NDArray[np.int64]) -> float:
    """The share of faces whose nearest other face is of the same person."""
    d2 = cdist(z, z, "sqeuclidean")
    np.fill_diagonal(d2, np.inf)
    return float((person[d2.argmin(1)] == person).mean())


def two_tasks(count: int = 60, photos: int = 6, moods: int = 3, seed: int = 0) -> TrainingSet:
    """Data of two tasks, identity and mood: (count * photos, 40) rows that depend on both in the same numbers."""
    rng = np.random.default_rng(seed)
    person, mood = np.repeat(np.arange(count), photos), rng.integers(0, moods, count * photos)
    rows = rng.normal(size=(count, 40))[person] + rng.normal(size=(moods, 40))[mood]
    rows += 2.2 * rng.normal(size=(len(person), 40))
    mood_task = TaskData("mood", np.arange(len(person)), mood * 1.0, person)
    return TrainingSet(rows.astype(np.float32), (identity(person), mood_task))
