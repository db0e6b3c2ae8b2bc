"""Measure what the common and the own projection of a task do, on people held out."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.embedder_training.examples import TaskExamples
from ml.embedder_training.task_measurement import MAX_CALIBRATION_PAIRS, HoldoutEmbeddings
from ml.embedders.base import Embedder
from ml.evaluation.comparisons.paired_tests import compare
from ml.evaluation.comparisons.queries import choose_queries, rank_gallery
from ml.evaluation.intervals import bootstrap_mean, bootstrap_rate
from ml.evaluation.retrieval import Ranked, average_precisions, n_call
from ml.metric_learning.hinge.projection_parts import ProjectionParts
from ml.sampling.value_pairs import draw_pairs
from ml.types import Ids, Rows

PARTS = ("common", "own", "both")
Distances = NDArray[np.float64]


def measure_projections(
    embedder: Embedder,
    embeddings: Mapping[str, HoldoutEmbeddings],
    examples: Mapping[str, TaskExamples],
    people: Ids,
    held_out: NDArray[np.bool_],
) -> dict[str, dict[str, Any]]:
    """Return task -> what its projections do; empty if the embedder does not learn a projection for each task.

    embeddings, examples: of each task; people: (N,) number of each face's person; held_out: (N,)
    The entry of a task has `angles` and, if something can be measured on the held-out people, `parts` and `gains`.
    """
    parts = {task: embedder.split_projection(task) for task in embedder.tasks}
    known = {task: part for task, part in parts.items() if part is not None}
    if len(known) < len(parts):
        return {}
    described = {}
    main = embeddings.get(embedder.tasks[0])
    for task in embeddings:
        measured = _measure_task(known[task], embeddings[task], main, examples[task], people, held_out)
        described[task] = {"is_sum": known[task].is_sum, "angles": _measure_angles(task, known)} | measured
    return described


def measure_angles(first: Rows, second: Rows) -> dict[str, float] | None:
    """Return the smallest, median and largest principal angle between the row spaces of (d0, D) and (d1, D).

    In degrees: 0 where a direction is in both, 90 where one has nothing of the other. None if one has no rows.
    """
    if not len(first) or not len(second):
        return None
    angles = np.degrees(scipy.linalg.subspace_angles(first.T.astype(np.float64), second.T.astype(np.float64)))
    return {"smallest": float(angles.min()), "median": float(np.median(angles)), "largest": float(angles.max())}


def _measure_angles(task: str, parts: Mapping[str, ProjectionParts]) -> dict[str, Any]:
    """Return the angles between a task's own projection and the common one, and those of the other tasks."""
    own = parts[task]
    others = {other: measure_angles(own.own, part.own) for other, part in parts.items() if other != task}
    return {"to_common": measure_angles(own.own, own.common), "to_tasks": others}


def _measure_task(
    parts: ProjectionParts,
    embeddings: HoldoutEmbeddings,
    main: HoldoutEmbeddings | None,
    examples: TaskExamples,
    people: Ids,
    held_out: NDArray[np.bool_],
) -> dict[str, Any]:
    """main: the embeddings of the first task"""
    indices = np.flatnonzero(examples.member & held_out & ~np.isnan(examples.truth))
    if len(indices) < 2:
        return {}
    rows = _split(parts, embeddings.faces, None if main is None else main.faces)
    rows = {name: faces[embeddings.positions(indices)] for name, faces in rows.items()}
    distractors = _split(parts, embeddings.distractors, None if main is None else main.distractors)
    truth, searched = examples.truth[indices], people[indices]
    queries = choose_queries(searched)
    ranked = {
        name: rank_gallery(
            rows[name], searched, truth, distractors[name], embeddings.metric, queries,
            tolerance=examples.tolerance, name="projections",
        )
        for name in rows if rows[name].shape[1]
    }  # fmt: skip
    if not ranked["both"].mated.any():
        return {}
    pairs, same = draw_pairs(truth, examples.tolerance, MAX_CALIBRATION_PAIRS, np.random.default_rng(0))
    distances = {name: embeddings.metric.pair_distances(rows[name], pairs) for name in ranked}
    shares = compute_shares(distances, same) if parts.is_sum else {}
    described = {
        name: {"numbers": rows[name].shape[1], **_describe_ranking(of_part), **shares.get(name, {})}
        for name, of_part in ranked.items()
    }
    gains = {
        f"{name}_over_{other}": _compare(ranked["both"], ranked[other])
        for name, other in (("own", "common"), ("common", "own"))
        if other in ranked and (name in ranked or not parts.is_sum)
    }
    return {"parts": {name: described.get(name) for name in PARTS}, "gains": gains}


def _split(parts: ProjectionParts, embeddings: Rows, main: Rows | None) -> dict[str, Rows]:
    """Split (n, d) embeddings into those by each part. main: those of the first task"""
    if parts.is_sum:
        end = len(parts.common)
        return {"common": embeddings[:, :end], "own": embeddings[:, end:], "both": embeddings}
    return ({} if main is None else {"common": main}) | {"both": embeddings}


def compute_shares(distances: Mapping[str, Distances], same: NDArray[np.bool_]) -> dict[str, dict[str, float | None]]:
    """Return part -> the share that it carries of the squared distances of pairs by both parts.

    distances: part -> (P,), where those of `both` are the sum of the others; same: (P,) whether the pairs are alike
    distance_share: of the mean; variance_share: of the variance, by its covariance with the sum; separation_share: of
    the difference of the means of different and of alike pairs. The shares of all parts sum to 1. None: undefined
    """
    total = distances["both"]
    separation = _separate(total, same)
    shares: dict[str, dict[str, float | None]] = {}
    for name, of_part in distances.items():
        covariance = float(np.mean((of_part - of_part.mean()) * (total - total.mean())))
        shares[name] = {
            "distance_share": _divide(float(of_part.mean()), float(total.mean())),
            "variance_share": _divide(covariance, float(total.var())),
            "separation_share": None if separation is None else _divide(_separate(of_part, same), separation),
        }
    return shares


def _separate(distances: Distances, same: NDArray[np.bool_]) -> float | None:
    """Return how much farther apart different faces are than alike ones; None if there is only one kind of pairs."""
    if same.all() or not same.any():
        return None
    return float(distances[~same].mean() - distances[same].mean())


def _divide(part: float | None, whole: float) -> float | None:
    return None if part is None or whole <= 0 else part / whole


def _describe_ranking(ranked: Ranked) -> dict[str, Any]:
    return {
        "mAP": asdict(bootstrap_mean(average_precisions(ranked), ranked.groups)),
        "1-call@1": asdict(bootstrap_rate(n_call(ranked, 1), ranked.groups)),
    }


def _compare(whole: Ranked, part: Ranked) -> dict[str, Any]:
    """Return what the mAP of the whole embedding is above that of one part, with interval and p."""
    result = compare(average_precisions(whole), average_precisions(part), whole.groups)
    return asdict(result.difference) | {"p": result.p}
