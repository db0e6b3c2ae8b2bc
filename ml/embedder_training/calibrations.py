"""Calibrate an embedder: turn its distances into probabilities, for each task."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ml.calibration import MIN_PAIRS_PER_CLASS, Calibration
from ml.embedder_training.carried_distances import carry_over
from ml.embedder_training.examples import TaskExamples
from ml.embedder_training.holdout_fit import HoldoutFit
from ml.embedder_training.task_measurement import MAX_CALIBRATION_PAIRS, TaskMeasurement
from ml.embedders.base import Embedder
from ml.sampling.value_pairs import draw_pairs
from ml.types import Ids, Rows

COMPARED_SHARES = (0.05,)
"""The share of impostor pairs of learned people by which the two fits are compared: see `carry_over`."""


@dataclass(frozen=True, eq=False)
class TaskCalibrations:
    """The calibration of each task that has one.

    by_held_out: tasks that are calibrated on held-out people; where these were too few, all faces are used
    holdout: the calibrations of the fit without the held-out people, by its own distances
    """

    by_task: dict[str, Calibration]
    by_held_out: tuple[str, ...] = ()
    holdout: dict[str, Calibration] = field(default_factory=dict)


def calibrate_tasks(
    embedder: Embedder, tasks: Sequence[TaskExamples], people: Ids, rows: Rows, holdout: HoldoutFit | None = None
) -> TaskCalibrations:
    """Calibrate each task that the embedder has learned: on held-out people, else on the faces learned from.

    embedder: fitted on everybody; holdout: the fit on whose held-out people it is calibrated, None where there is none
    people: (N,) number of each face's person; rows: (N, D) descriptors
    """
    calibrations, of_holdout, by_held_out = dict[str, Calibration](), dict[str, Calibration](), []
    for examples in tasks:
        task = examples.task
        if task not in embedder.tasks:
            continue
        measured = holdout.measured.get(task) if holdout else None
        calibration = None
        if holdout and measured and min(len(measured.genuine), len(measured.impostor)) >= MIN_PAIRS_PER_CLASS:
            by_held_out.append(task)
            of_holdout[task] = Calibration.fit(measured.genuine, measured.impostor, measured.impostor_people)
            calibration = _calibrate_on_held_out(embedder, examples, rows, holdout, measured)
        calibration = calibration or _calibrate_on_learned(embedder, examples, people, rows)
        if calibration is not None:
            calibrations[task] = calibration
            of_holdout.setdefault(task, calibration)
    return TaskCalibrations(calibrations, tuple(by_held_out), of_holdout)


def _calibrate_on_held_out(
    embedder: Embedder, examples: TaskExamples, rows: Rows, holdout: HoldoutFit, measured: TaskMeasurement
) -> Calibration:
    """Calibrate on held-out pairs, with the distances that they have on the scale of the embedder that serves.

    Where too few pairs were learned from to compare the scales, these are taken to be the same.
    """
    pairs, same = _draw_known_pairs(examples, ~holdout.held_out)
    before, after = (_pair_distances(e, rows, pairs[~same], examples.task) for e in (holdout.embedder, embedder))
    genuine, impostor = (
        distances if (carried := carry_over(distances, before, after, COMPARED_SHARES)) is None else carried
        for distances in (measured.genuine, measured.impostor)
    )
    return Calibration.fit(genuine, impostor, measured.impostor_people)


def _calibrate_on_learned(embedder: Embedder, examples: TaskExamples, people: Ids, rows: Rows) -> Calibration | None:
    """Calibrate on pairs that were learned from, which look easier than others. Returns None where they are too few."""
    pairs, same = _draw_known_pairs(examples, np.ones(len(rows), np.bool_))
    if min(same.sum(), (~same).sum()) < MIN_PAIRS_PER_CLASS:
        return None
    distances = _pair_distances(embedder, rows, pairs, examples.task)
    return Calibration.fit(distances[same], distances[~same], people[pairs[~same]])


def _draw_known_pairs(examples: TaskExamples, chosen: NDArray[np.bool_]) -> tuple[Ids, NDArray[np.bool_]]:
    """Return (P, 2) pairs of the chosen (N,) faces, drawn and labelled, and (P,) whether each is the same."""
    draw, truth = np.random.default_rng(0), np.where(chosen, examples.truth, np.nan)
    drawn_pairs, drawn_same = draw_pairs(truth, examples.tolerance, MAX_CALIBRATION_PAIRS, draw)
    is_chosen = chosen[examples.pairs].all(axis=1)
    pairs = np.concatenate([drawn_pairs, examples.pairs[is_chosen]])
    return pairs, np.concatenate([drawn_same, examples.same[is_chosen]])


def _pair_distances(embedder: Embedder, rows: Rows, pairs: Ids, task: str) -> NDArray[np.float64]:
    """Compute the (P,) distances of (P, 2) pairs of rows."""
    used, ends = np.unique(pairs, return_inverse=True)
    distances = embedder.metric.pair_distances(embedder.embed(rows[used], task), ends.reshape(-1, 2))
    return distances.astype(np.float64)
