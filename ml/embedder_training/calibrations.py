"""Calibrate an embedder: turn its distances into probabilities, for each task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ml.calibration import MIN_PAIRS_PER_CLASS, Calibration
from ml.embedder_training.examples import TaskExamples
from ml.embedder_training.task_measurement import MAX_CALIBRATION_PAIRS, TaskMeasurement
from ml.embedders.base import Embedder
from ml.sampling.value_pairs import draw_pairs
from ml.types import Ids, Rows


@dataclass(frozen=True, eq=False)
class TaskCalibrations:
    """The calibration of each task that has one.

    by_held_out: tasks that are calibrated on held-out people; where these were too few, all faces are used
    """

    by_task: dict[str, Calibration]
    by_held_out: tuple[str, ...]


def calibrate_tasks(
    embedder: Embedder,
    tasks: Sequence[TaskExamples],
    people: Ids,
    rows: Rows,
    measured: Mapping[str, TaskMeasurement],
) -> TaskCalibrations:
    """Calibrate each task that the embedder has learned: on held-out people, else on the faces learned from.

    people: (N,) number of each face's person; rows: (N, D) descriptors
    measured: task -> its measurement on held-out people; empty where nobody is held out
    """
    on_held_out = {task: _calibrate_on_held_out(measurement) for task, measurement in measured.items()}
    by_held_out = tuple(task for task, calibration in on_held_out.items() if calibration is not None)
    calibrations = dict[str, Calibration]()
    for examples in tasks:
        if examples.task in embedder.tasks:
            calibration = on_held_out.get(examples.task) or _calibrate_on_learned(embedder, examples, people, rows)
            if calibration is not None:
                calibrations[examples.task] = calibration
    return TaskCalibrations(calibrations, by_held_out)


def _calibrate_on_held_out(measured: TaskMeasurement) -> Calibration | None:
    """Calibrate on held-out pairs. Returns None where there are too few of either kind."""
    if min(len(measured.genuine), len(measured.impostor)) < MIN_PAIRS_PER_CLASS:
        return None
    return Calibration.fit(measured.genuine, measured.impostor, measured.impostor_people)


def _calibrate_on_learned(embedder: Embedder, examples: TaskExamples, people: Ids, rows: Rows) -> Calibration | None:
    """Calibrate on pairs that were learned from, which look easier than others. Returns None where they are too few."""
    draw = np.random.default_rng(0)
    drawn_pairs, drawn_same = draw_pairs(examples.truth, examples.tolerance, MAX_CALIBRATION_PAIRS, draw)
    pairs, same = np.concatenate([drawn_pairs, examples.pairs]), np.concatenate([drawn_same, examples.same])
    if min(same.sum(), (~same).sum()) < MIN_PAIRS_PER_CLASS:
        return None
    used, ends = np.unique(pairs, return_inverse=True)
    embeddings = embedder.embed(rows[used], examples.task)
    distances = embedder.metric.pair_distances(embeddings, ends.reshape(-1, 2))
    return Calibration.fit(distances[same], distances[~same], people[pairs[~same]])
