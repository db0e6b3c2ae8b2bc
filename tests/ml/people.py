"""Rows of people who do not exist: the same person shows in a few numbers, louder ones say nothing."""

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import TaskData, TrainingSet


def people(count: int = 60, photos: int = 5, seed: int = 0, telling: int = 8, loud: int = 22) -> TrainingSet:
    """(count * photos, telling + loud) rows of one task, identity."""
    draw = np.random.default_rng(seed)
    person = np.repeat(np.arange(count), photos)
    rows = draw.normal(size=(len(person), telling + loud)) * np.repeat([0.6, 2.0], [telling, loud])
    rows[:, :telling] += draw.normal(size=(count, telling))[person]
    return TrainingSet(rows.astype(np.float32), (identity(person),))


def identity(person: NDArray[np.int64], **told: NDArray[np.generic]) -> TaskData:
    return TaskData("identity", np.arange(len(person)), person * 1.0, person, **told)  # type: ignore[arg-type]


def nearest_is_alike(z: NDArray[np.float32], person: NDArray[np.int64]) -> float:
    """The share of faces whose nearest other face is of the same person."""
    d2 = ((z[:, None] - z[None]) ** 2).sum(2)
    np.fill_diagonal(d2, np.inf)
    return float((person[d2.argmin(1)] == person).mean())


def two_tasks(count: int = 60, photos: int = 6, moods: int = 3, seed: int = 0) -> TrainingSet:
    """(count * photos, 40) rows in which the person and one of a few moods show in the same numbers."""
    draw = np.random.default_rng(seed)
    person, mood = np.repeat(np.arange(count), photos), draw.integers(0, moods, count * photos)
    rows = draw.normal(size=(count, 40))[person] + draw.normal(size=(moods, 40))[mood]
    rows += 2.2 * draw.normal(size=(len(person), 40))
    mine = TaskData("mood", np.arange(len(person)), mood * 1.0, person)
    return TrainingSet(rows.astype(np.float32), (identity(person), mine))
