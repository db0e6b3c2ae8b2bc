"""Make a candidate model: fit it without the held-out people, measure it on them, then fit it on everybody."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import NotFound
from app.learning.plan import Plan
from ml.calibration import Calibration
from ml.embedders.base import Embedder
from ml.errors import TooFewPairs
from ml.identification.open_set import OpenSetCalibration
from ml.model import Model
from ml.types import Rows
from workers.context import JobContext
from workers.description import describe_faces
from workers.publishing.exposure import HELD_OUT_FACES, HOLDOUT_SUFFIX
from workers.training import embedder_fit, vocabularies
from workers.training.candidate_measurement import (
    CandidateMeasurement,
    calibrate_on_training_faces,
    describe_unmeasured,
    measure_candidate,
)
from workers.training.progress import ProgressReporter
from workers.training.stranger_searches import measure_held_out_strangers
from workers.training.training_data import TrainingData

FIRST_FIT_END, REFIT_START = 580, 620
"""Steps of the job's progress, between which the candidate is measured."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """model: fitted on everybody; holdout_model: the same fit without the held-out people, None where nobody was.

    The next training is compared with the holdout model of the serving model, since the serving model itself has
    learned from those people.
    """

    model: Model
    holdout_model: Model | None
    report: dict[str, Any]


def make_candidate(
    context: JobContext, plan: Plan, data: TrainingData, name: str, reporter: ProgressReporter
) -> Candidate:
    """Split the people, fit, measure and refit. Raises TooFewPairs, NotFound (a crop is missing), Interrupted."""
    held_out = embedder_fit.choose_held_out_faces(data, plan.holdout)
    plan = _learn_vocabularies(context, plan, data, held_out, reporter)
    rows = _describe(context, plan, data, reporter)
    start, holdout_start = _load_start(context, plan.start_from)
    everything = embedder_fit.make_training_set(plan, data, rows, np.ones(len(rows), np.bool_))
    holdout_embedder = _fit_without(held_out, plan, data, rows, reporter, holdout_start)
    if holdout_embedder is None:
        embedder = embedder_fit.fit_embedder(plan, everything, reporter.phase("fit", 200, 1000), start=start)
        calibrations = calibrate_on_training_faces(embedder, rows, data)
        model = _make_model(name, plan, embedder, calibrations)
        return Candidate(model, None, describe_unmeasured(plan, data, held_out))
    measured = measure_candidate(context, plan, data, rows, held_out, holdout_embedder)
    strangers = measure_held_out_strangers(context, holdout_embedder, rows, data, held_out)
    embedder = embedder_fit.fit_embedder(
        plan, everything, reporter.phase("refit", REFIT_START, 1000), start=start, like=holdout_embedder
    )
    model = _make_model(name, plan, embedder, measured.calibrations, measured.by_held_out, strangers)
    return Candidate(
        model, _make_holdout_model(name, plan, holdout_embedder, data, held_out, measured), measured.report
    )


def _learn_vocabularies(
    context: JobContext, plan: Plan, data: TrainingData, held_out: NDArray[np.bool_], reporter: ProgressReporter
) -> Plan:
    """Return the plan with a vocabulary for each descriptor that needs one, learned without the held-out people."""
    faces = [face for face, is_held_out in zip(data.faces, held_out, strict=True) if not is_held_out]
    return vocabularies.learn_vocabularies(context, plan, faces, reporter.phase("vocabulary", 0, 20))


def _describe(context: JobContext, plan: Plan, data: TrainingData, reporter: ProgressReporter) -> Rows:
    progress = reporter.phase("describe", 20, 200)
    return describe_faces(
        context.resources, plan.recipe, data.faces, context, lambda done, total: progress(done, total, {})
    )


def _load_start(context: JobContext, model: str | None) -> tuple[Embedder | None, Embedder | None]:
    """Return the embedder to continue from, and the one of its holdout model (itself where it has none).

    Raises NotFound.
    """
    if model is None:
        return None, None
    models = context.resources.generations
    embedder = models.get(model).embedder
    try:
        return embedder, models.get(model + HOLDOUT_SUFFIX).embedder
    except NotFound:
        return embedder, embedder


def _fit_without(
    held_out: NDArray[np.bool_],
    plan: Plan,
    data: TrainingData,
    rows: Rows,
    reporter: ProgressReporter,
    start: Embedder | None,
) -> Embedder | None:
    """Fit without the held-out people; None where nobody is held out, or too little is left to learn from."""
    if not held_out.any():
        return None
    rest = embedder_fit.make_training_set(plan, data, rows, ~held_out)
    try:
        return embedder_fit.fit_embedder(plan, rest, reporter.phase("fit", 200, FIRST_FIT_END), start=start)
    except TooFewPairs:
        return None


def _make_model(
    name: str,
    plan: Plan,
    embedder: Embedder,
    calibrations: dict[str, Calibration],
    by_held_out: tuple[str, ...] = (),
    strangers: OpenSetCalibration | None = None,
) -> Model:
    """by_held_out: tasks calibrated on people who were not learned from; strangers: how such people score."""
    model_facts = {
        "made": "trained",
        "collection": plan.collection,
        "plan": plan.model_dump(mode="json", by_alias=True),
    }
    open_set = {"identity": strangers.to_dict()} if strangers else {}
    model_facts |= {"by_held_out": list(by_held_out), "open_set": open_set}
    return Model(name, plan.recipe, plan.method, embedder, calibrations, model_facts)


def _make_holdout_model(
    name: str,
    plan: Plan,
    embedder: Embedder,
    data: TrainingData,
    held_out: NDArray[np.bool_],
    measured: CandidateMeasurement,
) -> Model:
    pks = [face.pk for face, is_held_out in zip(data.faces, held_out, strict=True) if is_held_out]
    model_facts = {"holdout": plan.holdout, HELD_OUT_FACES: pks}
    return Model(name + HOLDOUT_SUFFIX, plan.recipe, plan.method, embedder, measured.calibrations, model_facts)
