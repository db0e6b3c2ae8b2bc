"""Measure a candidate on the held-out people, beside the model that serves, for each of its tasks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.db.session import reading
from app.db.tables import Deployment
from app.learning.plan import Plan
from ml.calibration import Calibration
from ml.embedders.base import Embedder
from ml.evaluation.comparisons.models import compare_rankings
from ml.model import Recipe
from ml.types import Rows
from workers.context import JobContext
from workers.description import describe_faces
from workers.publishing.exposure import find_learned_faces, trace_exposure
from workers.training import candidate_report
from workers.training.candidate_report import HoldoutTrial, TaskMeasurement
from workers.training.face_embeddings import HoldoutFaces, ModelUnderTest
from workers.training.training_data import COLLECTIONS_CREATED_AT, FaceRecord, TaskExamples, TrainingData


@dataclass(frozen=True, eq=False)
class CandidateMeasurement:
    """report: `candidate` and `current` of the main task, and all tasks under `tasks`

    by_held_out: tasks whose calibration is of held-out people; where these were too few, all faces are used
    """

    report: dict[str, Any]
    calibrations: dict[str, Calibration]
    by_held_out: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CurrentModel:
    """The model that a candidate is compared with. seen: how many held-out people it may have learned from."""

    model: str
    under_test: ModelUnderTest
    seen: int


def measure_candidate(
    context: JobContext,
    plan: Plan,
    data: TrainingData,
    rows: Rows,
    held_out: NDArray[np.bool_],
    embedder: Embedder,
) -> CandidateMeasurement:
    """Measure an embedder that was fitted without the held-out people. Raises NotFound, Interrupted.

    rows: (N, D) descriptors of the faces; held_out: (N,)
    """
    faces = _gather_faces(context, plan, data, rows, held_out)
    report = _summarise(plan, data, len(np.unique(data.people[held_out]))) | {"refit": True, "notes": embedder.notes}
    calibrations, by_held_out = dict[str, Calibration](), list[str]()
    for examples in list_learned_tasks(data, embedder):
        context.check()
        trial = HoldoutTrial(faces, examples, held_out, f"held-out-{plan.holdout:g}")
        candidate = candidate_report.measure_model(trial, ModelUnderTest(plan.recipe, embedder))
        report["tasks"][examples.task] = _compare_with_current(context, plan, trial, candidate)
        calibration = candidate_report.calibrate_on_held_out(candidate)
        if calibration is not None:
            by_held_out.append(examples.task)
        else:
            calibration = candidate_report.calibrate_on_learned(embedder, rows, examples, data.people)
        if calibration is not None:
            calibrations[examples.task] = calibration
    main = report["tasks"].get(plan.tasks[0], {})
    report |= {key: main.get(key) for key in ("candidate", "current", "current_model")}
    return CandidateMeasurement(report, calibrations, tuple(by_held_out))


def calibrate_on_training_faces(embedder: Embedder, rows: Rows, data: TrainingData) -> dict[str, Calibration]:
    """Calibrate each task on the faces that were learned from, where nobody is held out."""
    tasks = list_learned_tasks(data, embedder)
    all_tasks = {t.task: candidate_report.calibrate_on_learned(embedder, rows, t, data.people) for t in tasks}
    return {task: calibration for task, calibration in all_tasks.items() if calibration is not None}


def describe_unmeasured(plan: Plan, data: TrainingData, held_out: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the report of a candidate that could not be measured, with the reason."""
    why = "fewer than four people have what a search needs"
    if held_out.any():
        why = "without the people held out, too little is left to learn from"
    why = why if plan.holdout else "nobody was to be held out"
    return _summarise(plan, data, 0) | {"refit": False, "why_unmeasured": why}


def list_learned_tasks(data: TrainingData, embedder: Embedder) -> list[TaskExamples]:
    """List the tasks that the embedder has learned."""
    return [examples for examples in data.tasks if examples.task in embedder.tasks]


def _gather_faces(
    context: JobContext, plan: Plan, data: TrainingData, rows: Rows, held_out: NDArray[np.bool_]
) -> HoldoutFaces:
    """Gather the held-out faces, and those with labels."""

    def describe(recipe: Recipe, faces: Sequence[FaceRecord]) -> Rows:
        return describe_faces(context.resources, recipe, faces, context)

    labelled = [examples.pairs.ravel() for examples in data.tasks]
    indices = np.unique(np.concatenate([np.flatnonzero(held_out), *labelled]))
    return HoldoutFaces(data, indices, plan.recipe, rows, describe)


def _summarise(plan: Plan, data: TrainingData, people: int) -> dict[str, Any]:
    counts = {"held_out_people": people, "faces": len(data.faces), "distractors": len(data.distractors)}
    empty: dict[str, Any] = {"candidate": None, "current": None, "tasks": {}}
    return {"holdout": plan.holdout, "task": plan.tasks[0]} | counts | empty


def _compare_with_current(
    context: JobContext, plan: Plan, trial: HoldoutTrial, candidate: TaskMeasurement
) -> dict[str, Any]:
    """Report one task: the candidate, and the model that serves on the same faces."""
    current = _load_current(context, plan, trial)
    measured = candidate_report.measure_model(trial, current.under_test) if current else None
    report = candidate_report.make_report(trial, candidate, measured)
    report |= {"current_model": current.model, "current_has_seen": current.seen} if current else {}
    report["comparison"] = _compare_for_gate(plan, trial, candidate, measured, current)
    return report


def _compare_for_gate(
    plan: Plan,
    trial: HoldoutTrial,
    candidate: TaskMeasurement,
    measured: TaskMeasurement | None,
    current: CurrentModel | None,
) -> dict[str, Any] | None:
    """Compare for the gate when the model is published; None where the gate must measure by itself.

    That is where nothing could be ranked, the held-out people are of several collections, or the serving model has
    learned from some of them.
    """
    if candidate.ranked is None or (measured is not None and measured.ranked is None):
        return None
    if len(plan.collections) > 1 or (current is not None and current.seen):
        return None
    comparison = compare_rankings(
        measured.ranked if measured else None,
        candidate.ranked,
        open_set=trial.examples.task == "identity",
        searches=(measured.searches if measured else None, candidate.searches),
    )
    data = trial.faces.data
    return {
        "collection": plan.collection,
        "collection_created_at": data.snapshot[COLLECTIONS_CREATED_AT][plan.collection],
        "champion": current.model if current else None,
        "faces": len(data.faces),
        "comparison": comparison.to_dict(),
    }


def _load_current(context: JobContext, plan: Plan, trial: HoldoutTrial) -> CurrentModel | None:
    """Load the champion of the task, or its holdout model if the champion has learned from these collections."""
    data = trial.faces.data
    with reading(context.resources.database) as session:
        deployment = session.get(Deployment, (plan.collection, trial.examples.task))
        if deployment is None:
            return None
        champion = deployment.champion
        exposure = trace_exposure(session, context.resources.generations, champion, plan.collections)
        learned = find_learned_faces(session, exposure, data)
    seen = len(np.unique(data.people[learned & trial.held_out]))
    return CurrentModel(champion, ModelUnderTest(exposure.measured_as.recipe, exposure.measured_as.embedder), seen)
