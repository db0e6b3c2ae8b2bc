"""Measure a candidate on the held-out people, beside the models that serve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.db.tables import DEFAULT_FPIR
from ml.embedder_training.calibrations import TaskCalibrations, calibrate_tasks
from ml.embedder_training.held_out_strangers import measure_held_out_strangers
from ml.embedder_training.holdout_fit import HoldoutFit
from ml.embedder_training.task_measurement import measure_tasks
from ml.embedders.base import Embedder
from ml.identification.open_set import OpenSetCalibration
from workers.context import JobContext
from workers.training.current_models import load_current_models
from workers.training.holdout_embeddings import ModelUnderTest, embed_holdout_faces
from workers.training.prepared_data import PreparedData
from workers.training.report import CurrentMeasurement, make_report
from workers.training.split import MIN_STRANGERS_HELD_OUT


@dataclass(frozen=True, eq=False)
class CandidateMeasurement:
    """What was measured of a candidate.

    strangers: collection -> how its held-out people score there while they are not enrolled, in distances of the fit
        that serves
    """

    report: dict[str, Any]
    calibrations: TaskCalibrations
    strangers: Mapping[str, OpenSetCalibration]


def measure_candidate(
    context: JobContext,
    prepared: PreparedData,
    embedder: Embedder,
    serving: Embedder,
    strangers: Mapping[str, OpenSetCalibration],
) -> CandidateMeasurement:
    """Measure an embedder that was fitted without the held-out people.

    serving: the same fit on everybody; strangers: see `measure_strangers`
    Raises NotFound, CropsDamaged, ml.Corrupt, Interrupted.
    """
    data, held_out = prepared.data, prepared.held_out
    tasks = tuple(examples.task for examples in data.tasks if examples.task in embedder.tasks)
    current_models = load_current_models(context, prepared, tasks)
    candidate = ModelUnderTest(prepared.plan.recipe, embedder, tasks)
    models = [candidate, *(current.under_test for current in current_models)]
    embedded, *embedded_by_current = embed_holdout_faces(context, prepared, models)
    context.check()
    projections = embedder.split_projections()
    measured = measure_tasks(data.tasks, data.people, held_out, embedded, projections)
    served = {}
    for current, embeddings in zip(current_models, embedded_by_current, strict=True):
        context.check()
        for task, measurement in measure_tasks(data.tasks, data.people, held_out, embeddings).items():
            served[task] = CurrentMeasurement(current, measurement)
    holdout = HoldoutFit(embedder, held_out, measured)
    calibrations = calibrate_tasks(serving, data.tasks, data.people, prepared.rows, holdout)
    report = make_report(prepared, embedder, projections, measured, served)
    return CandidateMeasurement(report, calibrations, strangers)


def count_needed_strangers(strangers: OpenSetCalibration | None) -> int:
    """Return how many people a threshold at the default rate needs who are strangers to a fit; 0: it has enough."""
    if strangers is None:
        return MIN_STRANGERS_HELD_OUT
    if any(searches.is_enough(DEFAULT_FPIR) for searches in strangers.strangers):
        return 0
    return max(searches.people + searches.missing_people(DEFAULT_FPIR) for searches in strangers.strangers)


def measure_strangers(
    context: JobContext, prepared: PreparedData, fits: Sequence[HoldoutFit], serving: Embedder
) -> dict[str, OpenSetCalibration]:
    """Search for the held-out people of each collection in it alone, as it will be searched.

    fits: each without other people; serving: the same fit on everybody
    Returns collection -> what was measured, of those where there was something to measure. Raises Interrupted.
    """
    data, measured = prepared.data, dict[str, OpenSetCalibration]()
    for collection in data.collections:
        here = data.lies_in(collection)
        restricted = [HoldoutFit(fit.embedder, fit.held_out[here]) for fit in fits]
        strangers = measure_held_out_strangers(
            restricted, serving, data.people[here], prepared.rows[here], names=data.names[here], check=context.check
        )
        measured |= {} if strangers is None else {collection: strangers}
    return measured
