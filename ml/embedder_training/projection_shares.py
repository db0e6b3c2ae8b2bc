"""Describe what the common and the own projection of a task do, by what each of them reaches on people held out."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from ml.embedder_training.task_measurement import PartMeasurement, TaskMeasurement
from ml.evaluation.comparisons.paired_tests import compare
from ml.evaluation.intervals import bootstrap_mean, bootstrap_rate
from ml.evaluation.retrieval import Ranked, average_precisions, n_call
from ml.metric_learning.hinge.projection_parts import ProjectionParts
from ml.types import Rows

PARTS = ("common", "own", "both")
Distances = NDArray[np.float64]


def describe_projections(projections: Mapping[str, ProjectionParts], measured: TaskMeasurement) -> dict[str, Any]:
    """Return what the projections of a task do.

    projections: of each task
    The result has `angles` and, if something could be measured on the held-out people, `parts` and `gains`.
    """
    task = measured.examples.task
    parts = projections[task]
    others = {other: measure_angles(parts.own, part.own) for other, part in projections.items() if other != task}
    angles = {"to_common": measure_angles(parts.own, parts.common), "to_tasks": others}
    described: dict[str, Any] = {"is_sum": parts.is_sum, "angles": angles}
    return described | _describe_parts(measured.parts, parts.is_sum) if measured.parts else described


def measure_angles(first: Rows, second: Rows) -> dict[str, float] | None:
    """Return the smallest, median and largest principal angle between the row spaces of (d0, D) and (d1, D).

    In degrees: 0 where a direction is in both, 90 where one has nothing of the other. None if one has no rows.
    """
    if not len(first) or not len(second):
        return None
    angles = np.degrees(scipy.linalg.subspace_angles(first.T.astype(np.float64), second.T.astype(np.float64)))
    return {"smallest": float(angles.min()), "median": float(np.median(angles)), "largest": float(angles.max())}


def _describe_parts(parts: Mapping[str, PartMeasurement], is_sum: bool) -> dict[str, Any]:
    whole, distances = parts["both"], {name: part.distances for name, part in parts.items()}
    shares = compute_shares(distances, whole.same) if is_sum else {}
    described = {
        name: {"numbers": part.width, **_describe_ranking(part.ranked), **shares.get(name, {})}
        for name, part in parts.items()
    }
    gains = {
        f"{name}_over_{other}": _compare(whole.ranked, parts[other].ranked)
        for name, other in (("own", "common"), ("common", "own"))
        if other in parts and (name in parts or not is_sum)
    }
    return {"parts": {name: described.get(name) for name in PARTS}, "gains": gains}


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
