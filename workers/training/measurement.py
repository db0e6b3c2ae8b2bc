"""Measure a candidate on the held-out people, beside the models that serve."""

from dataclasses import dataclass
from typing import Any

from ml.embedder_training.calibrations import TaskCalibrations, calibrate_tasks
from ml.embedder_training.held_out_strangers import measure_held_out_strangers
from ml.embedder_training.projection_shares import measure_projections
from ml.embedder_training.task_measurement import measure_task
from ml.embedders.base import Embedder
from ml.identification.open_set import OpenSetCalibration
from workers.context import JobContext
from workers.training.current_models import load_current_models
from workers.training.holdout_embeddings import ModelUnderTest, embed_holdout_faces
from workers.training.prepared_data import PreparedData
from workers.training.report import CurrentMeasurement, make_report, make_unmeasured_report


@dataclass(frozen=True, eq=False)
class CandidateMeasurement:
    """What was measured of a candidate.

    calibrations, strangers: None where the candidate could not be measured
    strangers: how the held-out people score while they are not enrolled; None too where identity was not learned
    """

    report: dict[str, Any]
    calibrations: TaskCalibrations | None = None
    strangers: OpenSetCalibration | None = None


def measure_candidate(context: JobContext, prepared: PreparedData, embedder: Embedder | None) -> CandidateMeasurement:
    """Measure an embedder that was fitted without the held-out people; None: there is none, and nothing is measured.

    Raises NotFound, CropsDamaged, ml.Corrupt, Interrupted.
    """
    if embedder is None:
        return CandidateMeasurement(make_unmeasured_report(prepared))
    data, held_out, rows = prepared.data, prepared.held_out, prepared.rows
    people, name = data.people, prepared.plan.protocol_name
    tasks = {examples.task: examples for examples in data.tasks if examples.task in embedder.tasks}
    current_models = load_current_models(context, prepared, list(tasks))
    candidate = ModelUnderTest(prepared.plan.recipe, embedder, tuple(tasks))
    models = [candidate, *(current.under_test for current in current_models)]
    measurements = []
    embedded = embed_holdout_faces(context, prepared, models)
    for embeddings in embedded:
        context.check()
        measurements.append({t: measure_task(tasks[t], people, held_out, e, name) for t, e in embeddings.items()})
    measured, *of_current = measurements
    calibrations = calibrate_tasks(embedder, data.tasks, people, rows, measured)
    strangers = measure_held_out_strangers(
        embedder, people, held_out, rows, is_named=data.is_named, check=context.check
    )
    served = {
        task: CurrentMeasurement(current, measurement)
        for current, by_task in zip(current_models, of_current, strict=True)
        for task, measurement in by_task.items()
    }
    projections = measure_projections(embedder, embedded[0], tasks, people, held_out)
    report = make_report(prepared, measured, served, projections) | {"notes": embedder.notes}
    return CandidateMeasurement(report, calibrations, strangers)
