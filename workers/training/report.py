"""Report how good a candidate is, beside the models that serve."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.galleries.learned_collections import COLLECTIONS_CREATED_AT
from ml.embedder_training.projection_shares import describe_projections
from ml.embedder_training.task_measurement import TaskMeasurement
from ml.embedders.base import Embedder
from ml.evaluation.comparisons.models import compare_rankings
from ml.evaluation.comparisons.paired_tests import compare
from ml.evaluation.report import summarise
from ml.evaluation.retrieval import Ranked, average_precisions, n_call
from ml.evaluation.verification import best_threshold
from ml.metric_learning.hinge.projection_parts import ProjectionParts
from workers.training.current_models import CurrentModel
from workers.training.prepared_data import PreparedData


@dataclass(frozen=True, eq=False)
class CurrentMeasurement:
    """What the serving model reaches in one task."""

    model: CurrentModel
    measured: TaskMeasurement


def make_report(
    prepared: PreparedData,
    embedder: Embedder,
    projections: Mapping[str, ProjectionParts],
    measured: Mapping[str, TaskMeasurement],
    current: Mapping[str, CurrentMeasurement],
) -> dict[str, Any]:
    """Return the report of a training: each task under `tasks`, and the figures of the main task on top.

    embedder: the candidate, fitted without the held-out people; projections: its own of each task, if it has such
    measured, current: task -> what the candidate and the serving model reach
    """
    held_out_people = len(np.unique(prepared.data.people[prepared.held_out]))
    report = _summarise_data(prepared) | {"refit": True, "held_out_people": held_out_people}
    tasks = {
        task: _make_task_report(prepared, measurement, current.get(task))
        | {"projections": describe_projections(projections, measurement) if projections else None}
        for task, measurement in measured.items()
    }
    main = tasks.get(prepared.plan.tasks[0], {})
    figures = {key: main.get(key) for key in ("candidate", "current", "current_model")}
    return report | {"tasks": tasks} | figures | {"notes": embedder.notes}


def make_unmeasured_report(prepared: PreparedData) -> dict[str, Any]:
    """Return the report of a candidate that could not be measured, with the reason."""
    why = "fewer than four people have what a search needs"
    if prepared.held_out.any():
        why = "without the people held out, too little is left to learn from"
    elif prepared.known_to_start.any():
        why = "the model that the training continues may have learned from the people to hold out"
    why = why if prepared.plan.holdout else "nobody was to be held out"
    empty: dict[str, Any] = {"candidate": None, "current": None, "tasks": {}}
    return _summarise_data(prepared) | {"refit": False, "held_out_people": 0, "why_unmeasured": why} | empty


def _summarise_data(prepared: PreparedData) -> dict[str, Any]:
    plan, data = prepared.plan, prepared.data
    known_to_start = len(np.unique(data.people[prepared.known_to_start]))
    counts = {"faces": len(data.faces), "distractors": len(data.distractors), "start_has_seen": known_to_start}
    return {"holdout": plan.holdout, "task": plan.tasks[0]} | counts


def _make_task_report(
    prepared: PreparedData, candidate: TaskMeasurement, current: CurrentMeasurement | None
) -> dict[str, Any]:
    """Return the report of a task.

    candidate, current: `EvaluationReport.to_dict`, or None where nothing could be ranked or nothing serves
    difference: candidate less current, each figure with its interval and the p of a permutation test over the queries
    labels: how many labels each model gets right
    comparison: what the gate judges by when the model is published
    """
    served = current.measured if current is not None else None
    report: dict[str, Any] = {"candidate": None, "current": None, "difference": None}
    report["comparison"] = _compare_for_gate(prepared, candidate, current)
    report["labels"] = _count_right_labels(prepared, candidate, served)
    if candidate.ranked is not None:
        report["candidate"] = _summarise(prepared, candidate, candidate.ranked)
        if served is not None and served.ranked is not None:
            report["current"] = _summarise(prepared, served, served.ranked)
            report["difference"] = _compare(candidate.ranked, served.ranked)
    if current is not None:
        report |= {"current_model": current.model.champion, "current_has_seen": current.model.seen}
    return report


def _summarise(prepared: PreparedData, measured: TaskMeasurement, ranked: Ranked) -> dict[str, Any]:
    name, task = prepared.plan.protocol_name, measured.examples.task
    return summarise([ranked], protocol=name, task=task, metric=measured.metric).to_dict()


def _compare(candidate: Ranked, current: Ranked) -> dict[str, dict[str, float]]:
    figures = {
        "mAP": (average_precisions(candidate), average_precisions(current)),
        "1-call@1": (n_call(candidate, 1), n_call(current, 1)),
        "1-call@10": (n_call(candidate, 10), n_call(current, 10)),
    }
    compared = {name: compare(now, before, candidate.groups) for name, (now, before) in figures.items()}
    return {name: asdict(result.difference) | {"p": result.p} for name, result in compared.items()}


def _count_right_labels(
    prepared: PreparedData, candidate: TaskMeasurement, current: TaskMeasurement | None
) -> dict[str, Any]:
    """Count the labels of held-out people (`unseen`) and all others (`learned`)."""
    examples = candidate.examples
    unseen: NDArray[np.bool_] = np.asarray(prepared.held_out[examples.pairs].any(axis=1), np.bool_)
    return {
        which: {
            "pairs": int(chosen.sum()),
            "right_before": None if current is None else _count_right(current, chosen),
            "right_now": _count_right(candidate, chosen),
        }
        for which, chosen in (("unseen", unseen), ("learned", ~unseen))
    } | {"unsettled": examples.unsettled}


def _count_right(measured: TaskMeasurement, chosen: NDArray[np.bool_]) -> int | None:
    """Count the labels that the best threshold of the held-out pairs (half of them the same) gets right."""
    threshold = _find_threshold(measured)
    return (
        None if threshold is None else int(((measured.labelled <= threshold) == measured.examples.same)[chosen].sum())
    )


def _find_threshold(measured: TaskMeasurement) -> float | None:
    count = min(len(measured.genuine), len(measured.impostor))
    if not count:
        return None
    draw = np.random.default_rng(0)
    parts = [draw.choice(part, count, replace=False) for part in (measured.genuine, measured.impostor)]
    return best_threshold(np.concatenate(parts), np.repeat([True, False], count))


def _compare_for_gate(
    prepared: PreparedData, candidate: TaskMeasurement, current: CurrentMeasurement | None
) -> dict[str, Any] | None:
    """Compare for the gate. Returns None where the gate must measure by itself.

    That is where nothing could be ranked, the held-out people are of several collections, or the serving model has
    learned from some of them.
    """
    plan, data = prepared.plan, prepared.data
    served = current.measured if current is not None else None
    if candidate.ranked is None or (served is not None and served.ranked is None):
        return None
    if len(plan.collections) > 1 or (current is not None and current.model.seen):
        return None
    comparison = compare_rankings(
        served.ranked if served else None,
        candidate.ranked,
        open_set=candidate.examples.task == "identity",
        searches=(served.searches if served else None, candidate.searches),
    )
    return {
        "collection": plan.collection,
        "collection_created_at": data.snapshot[COLLECTIONS_CREATED_AT][plan.collection],
        "champion": current.model.champion if current is not None else None,
        "faces": len(data.faces),
        "comparison": comparison.to_dict(),
    }
