"""Calibrate an embedder: turn its distances into probabilities, for each task."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ml.calibration import MIN_PAIRS_PER_CLASS, Calibration, choose_faces
from ml.embedder_training.carried_distances import carry_over, pair_distances
from ml.embedder_training.examples import TaskExamples
from ml.embedder_training.holdout_fit import HoldoutFit
from ml.embedder_training.task_measurement import MAX_CALIBRATION_PAIRS, Distances, TaskMeasurement
from ml.embedders.base import Embedder
from ml.sampling.value_pairs import draw_pairs
from ml.types import Ids, Rows

MAX_STRANGER_PAIRS = 50_000
"""Pairs of a held-out and a learned person that are measured."""


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
            impostor, impostor_people = _measure_strangers(examples, people, rows, holdout, measured)
            of_holdout[task] = Calibration.fit(measured.genuine, impostor, impostor_people)
            genuine, impostor = _carry_all_over(embedder, examples, rows, holdout, measured.genuine, impostor)
            calibration = Calibration.fit(genuine, impostor, impostor_people)
        calibration = calibration or _calibrate_on_learned(embedder, examples, people, rows)
        if calibration is not None:
            calibrations[task] = calibration
            of_holdout.setdefault(task, calibration)
    return TaskCalibrations(calibrations, tuple(by_held_out), of_holdout)


def _measure_strangers(
    examples: TaskExamples, people: Ids, rows: Rows, holdout: HoldoutFit, measured: TaskMeasurement
) -> tuple[Distances, Ids]:
    """Return the (P,) distances of impostor pairs, and the (P, 2) people of each.

    Pairs are those of a held-out person and a learned one, as of a stranger and somebody who is enrolled: learned
    people lie farther apart. Where nothing is known of the faces but labels, they are the labelled pairs.
    """
    pairs = _draw_stranger_pairs(examples, people, holdout.held_out)
    if len(pairs) < MIN_PAIRS_PER_CLASS:
        return measured.impostor, measured.impostor_people
    return pair_distances(holdout.embedder, rows, pairs, examples.task), people[pairs]


def _carry_all_over(
    embedder: Embedder, examples: TaskExamples, rows: Rows, holdout: HoldoutFit, *measured: Distances
) -> list[Distances]:
    """Return distances by the fit without the held-out people on the scale of the embedder that serves.

    Where too few pairs were learned from to compare the scales, these are taken to be the same.
    """
    pairs, same = _draw_known_pairs(examples, ~holdout.held_out)
    before, after = (pair_distances(e, rows, pairs[~same], examples.task) for e in (holdout.embedder, embedder))
    carried = [carry_over(distances, before, after) for distances in measured]
    return [distances if one is None else one for distances, one in zip(measured, carried, strict=True)]


def _draw_stranger_pairs(examples: TaskExamples, people: Ids, held_out: NDArray[np.bool_]) -> Ids:
    """Return (P, 2) drawn pairs of a face of a held-out person and one of somebody else who differs in the task."""
    known, draw = np.flatnonzero(~np.isnan(examples.truth)), np.random.default_rng(0)
    faces = [choose_faces(np.where(held_out[known] == is_held_out, people[known], -1), draw) for is_held_out in (1, 0)]
    if not all(map(len, faces)):
        return np.empty((0, 2), np.int64)
    pairs = np.stack([known[draw.choice(chosen, MAX_STRANGER_PAIRS)] for chosen in faces], axis=1)
    pairs = np.unique(pairs, axis=0)
    differs: NDArray[np.bool_] = np.abs(np.diff(examples.truth[pairs], axis=1)[:, 0]) > examples.tolerance
    stranger_pairs: Ids = pairs[differs]
    return stranger_pairs


def _calibrate_on_learned(embedder: Embedder, examples: TaskExamples, people: Ids, rows: Rows) -> Calibration | None:
    """Calibrate on pairs that were learned from, which look easier than others. Returns None where they are too few."""
    pairs, same = _draw_known_pairs(examples, np.ones(len(rows), np.bool_))
    if min(same.sum(), (~same).sum()) < MIN_PAIRS_PER_CLASS:
        return None
    distances = pair_distances(embedder, rows, pairs, examples.task)
    return Calibration.fit(distances[same], distances[~same], people[pairs[~same]])


def _draw_known_pairs(examples: TaskExamples, chosen: NDArray[np.bool_]) -> tuple[Ids, NDArray[np.bool_]]:
    """Return (P, 2) pairs of the chosen (N,) faces, drawn and labelled, and (P,) whether each is the same."""
    draw, truth = np.random.default_rng(0), np.where(chosen, examples.truth, np.nan)
    drawn_pairs, drawn_same = draw_pairs(truth, examples.tolerance, MAX_CALIBRATION_PAIRS, draw)
    is_chosen = chosen[examples.pairs].all(axis=1)
    pairs = np.concatenate([drawn_pairs, examples.pairs[is_chosen]])
    return pairs, np.concatenate([drawn_same, examples.same[is_chosen]])
