"""Report a candidate: one task, measured on held-out people, beside the serving model on the same faces."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.calibration import MIN_PAIRS_PER_CLASS, Calibration
from ml.distances import Distance
from ml.embedders.base import Embedder
from ml.evaluation.comparisons.decisions import SearchDistances
from ml.evaluation.comparisons.paired_tests import compare
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import rank_protocol, summarise
from ml.evaluation.retrieval import Ranked, average_precisions, n_call
from ml.evaluation.verification import best_threshold
from ml.types import Ids, Rows
from workers.training.embedder_fit import draw_pairs
from workers.training.face_embeddings import HoldoutFaces, ModelUnderTest, TaskEmbeddings
from workers.training.training_data import TaskExamples

Distances = NDArray[np.float64]

MAX_QUERIES = 2000
MAX_QUERIES_PER_PERSON = 10
MAX_CALIBRATION_PAIRS = 20_000
"""Drawn to calibrate on, half of them the same."""


@dataclass(frozen=True, eq=False)
class HoldoutTrial:
    """The measurement of one task. held_out: (N,) faces of held-out people; name: of the protocol in the report."""

    faces: HoldoutFaces
    examples: TaskExamples
    held_out: NDArray[np.bool_]
    name: str


@dataclass(frozen=True, eq=False)
class TaskMeasurement:
    """What one model reaches in one task.

    ranked: None where nothing could be ranked
    genuine, impostor, labelled: distances of held-out pairs, and of the labelled pairs
    impostor_people: (n, 2) numbers of the two people of each impostor pair
    searches: what identification decides by, for the task identity
    """

    metric: Distance
    ranked: Ranked | None
    genuine: Distances
    impostor: Distances
    labelled: Distances
    impostor_people: Ids
    searches: SearchDistances | None = None


def measure_model(trial: HoldoutTrial, model: ModelUnderTest) -> TaskMeasurement:
    """Search for the held-out faces among the other held-out faces and the distractors."""
    examples, metric = trial.examples, model.embedder.metric
    embeddings = trial.faces.embed(model, examples.task)
    labelled = metric.pair_distances(embeddings.faces, trial.faces.positions(examples.pairs))
    indices = np.flatnonzero(examples.member & trial.held_out & ~np.isnan(examples.truth))
    ranked = _rank(trial, embeddings, indices, metric)
    all_people = trial.faces.data.people
    if ranked is None:
        unseen = trial.held_out[examples.pairs].any(axis=1)
        impostor = unseen & ~examples.same
        people = all_people[examples.pairs[impostor]]
        return TaskMeasurement(metric, None, labelled[unseen & examples.same], labelled[impostor], labelled, people)
    pairs, same = draw_pairs(
        examples.truth[indices], examples.tolerance, MAX_CALIBRATION_PAIRS, np.random.default_rng(0)
    )
    genuine = metric.pair_distances(embeddings.faces, trial.faces.positions(indices[pairs[same]]))
    people = _list_impostor_people(ranked, all_people[indices])
    searches = _search(trial, embeddings, indices, metric) if examples.task == "identity" else None
    return TaskMeasurement(metric, ranked, genuine, ranked.impostor.astype(np.float64), labelled, people, searches)


def _search(trial: HoldoutTrial, embeddings: TaskEmbeddings, indices: Ids, metric: Distance) -> SearchDistances:
    people = trial.faces.data.people[indices]
    rows = embeddings.faces[trial.faces.positions(indices)]
    return SearchDistances.by_rule(rows, people, embeddings.distractors, choose_queries(people), metric)


def _list_impostor_people(ranked: Ranked, people: Ids) -> Ids:
    """Return (n, 2) people of each impostor pair. people: of the searched faces; each distractor, whose id is behind
    those of the searched faces, is a person of their own."""
    ids = ranked.impostor_ids
    distractor = people.max(initial=0) + 1 + ids
    searched = people[np.minimum(ids, len(people) - 1)]
    other = np.where(ids < len(people), searched, distractor)
    return np.stack([ranked.impostor_of.astype(np.int64), other], axis=1)


def _rank(trial: HoldoutTrial, embeddings: TaskEmbeddings, indices: Ids, metric: Distance) -> Ranked | None:
    examples, faces = trial.examples, trial.faces
    if len(indices) < 2:
        return None
    positions = faces.positions(indices)
    gallery = np.arange(len(positions))
    people = faces.data.people[indices]
    protocol = Protocol(trial.name, people, np.empty(0, np.int64), choose_queries(people), gallery)
    ranked = rank_protocol(
        embeddings.faces[positions],
        protocol,
        metric=metric,
        values=examples.truth[indices],
        tolerance=examples.tolerance,
        distractors=embeddings.distractors,
    )
    return ranked if len(ranked.genuine) and len(ranked.impostor) else None


def choose_queries(people: Ids) -> Ids:
    """Choose the faces that are searched for: at most ten of a person and 2,000 in all, the same each time."""
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(len(people))
    order = shuffled[np.argsort(people[shuffled], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(people[order]) != 0])
    turn = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    chosen = order[turn < MAX_QUERIES_PER_PERSON]
    return np.sort(rng.permutation(chosen)[:MAX_QUERIES])


def make_report(trial: HoldoutTrial, candidate: TaskMeasurement, current: TaskMeasurement | None) -> dict[str, Any]:
    """Report a task.

    candidate, current: `Report.to_dict`, or None; difference: candidate less current, each figure with its interval and
    the p of a permutation test over the queries; labels: how many labels each model gets right
    """
    report: dict[str, Any] = {
        "candidate": None,
        "current": None,
        "difference": None,
        "labels": _count_right_labels(trial, candidate, current),
    }
    if candidate.ranked is None:
        return report
    report["candidate"] = _summarise(trial, candidate.ranked, candidate.metric)
    if current is not None and current.ranked is not None:
        now, before = candidate.ranked, current.ranked
        report["current"] = _summarise(trial, before, current.metric)
        report["difference"] = {
            "mAP": _compare(average_precisions(now), average_precisions(before), now),
            "1-call@1": _compare(n_call(now, 1), n_call(before, 1), now),
            "1-call@10": _compare(n_call(now, 10), n_call(before, 10), now),
        }
    return report


def _summarise(trial: HoldoutTrial, ranked: Ranked, metric: Distance) -> dict[str, Any]:
    return summarise([ranked], protocol=trial.name, task=trial.examples.task, metric=metric).to_dict()


def _compare(now: NDArray[np.float64], before: NDArray[np.float64], ranked: Ranked) -> dict[str, float]:
    comparison = compare(now, before, ranked.groups)
    return asdict(comparison.difference) | {"p": comparison.p}


def _count_right_labels(trial: HoldoutTrial, now: TaskMeasurement, before: TaskMeasurement | None) -> dict[str, Any]:
    """Count apart `unseen` labels, those of held-out people, and `learned` ones, the others."""
    unseen: NDArray[np.bool_] = np.asarray(trial.held_out[trial.examples.pairs].any(axis=1), np.bool_)
    return {
        which: {
            "pairs": int(chosen.sum()),
            "right_before": None if before is None else _count_right(trial.examples.same, before, chosen),
            "right_now": _count_right(trial.examples.same, now, chosen),
        }
        for which, chosen in (("unseen", unseen), ("learned", ~unseen))
    } | {"unsettled": trial.examples.unsettled}


def _count_right(same: NDArray[np.bool_], measured: TaskMeasurement, chosen: NDArray[np.bool_]) -> int | None:
    """Count the labels that the best threshold of the held-out pairs (half of them the same) gets right."""
    threshold = _find_threshold(measured)
    return None if threshold is None else int(((measured.labelled <= threshold) == same)[chosen].sum())


def _find_threshold(measured: TaskMeasurement) -> float | None:
    count = min(len(measured.genuine), len(measured.impostor))
    if not count:
        return None
    draw = np.random.default_rng(0)
    parts = [draw.choice(part, count, replace=False) for part in (measured.genuine, measured.impostor)]
    return best_threshold(np.concatenate(parts), np.repeat([True, False], count))


def calibrate_on_held_out(measured: TaskMeasurement) -> Calibration | None:
    """Calibrate on held-out pairs; None where there are too few of either kind."""
    if min(len(measured.genuine), len(measured.impostor)) < MIN_PAIRS_PER_CLASS:
        return None
    return Calibration.fit(measured.genuine, measured.impostor, measured.impostor_people)


def calibrate_on_learned(embedder: Embedder, rows: Rows, examples: TaskExamples, people: Ids) -> Calibration | None:
    """Calibrate on pairs that were learned from, which look easier than they are; None where there are too few.

    rows: (N, D) descriptors; people: (N,) numbers of the people
    """
    drawn_pairs, drawn_same = draw_pairs(
        examples.truth, examples.tolerance, MAX_CALIBRATION_PAIRS, np.random.default_rng(0)
    )
    pairs, same = np.concatenate([drawn_pairs, examples.pairs]), np.concatenate([drawn_same, examples.same])
    if min(same.sum(), (~same).sum()) < MIN_PAIRS_PER_CLASS:
        return None
    used, ends = np.unique(pairs, return_inverse=True)
    distances = embedder.metric.pair_distances(embedder.embed(rows[used], examples.task), ends.reshape(-1, 2))
    return Calibration.fit(distances[same], distances[~same], people[pairs[~same]])
