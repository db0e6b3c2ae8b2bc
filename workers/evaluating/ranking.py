"""Measure an evaluation by ranking: each draw, all draws together, and the curves over cells and distractors."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ml import indexes
from ml.distances import EUCLIDEAN, Distance
from ml.evaluation.clustering import measure_cluster_nmi
from ml.evaluation.curves import distractor_curve, speed_accuracy
from ml.evaluation.open_set import OpenSetOutcomes, search_open_set, summarise_open_set
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import CALL_RANKS, FPIRS, rank_protocol, summarise
from ml.evaluation.retrieval import Ranked, average_precisions, n_call
from ml.evaluation.verification import det, misses_at_fpir
from workers.evaluating.dataset import EvaluationSet
from workers.evaluating.embeddings import GalleryEmbeddings

MAX_SEARCH_DIM = 2048
"""Wider embeddings are searched flat in practice, and k-means over them takes minutes."""
MAX_MISSING_SHOWN = 100
MAX_CLUSTERING_WORK = 10_000_000
"""Number of people times number of faces: half a minute of k-means."""


def measure_ranking(
    task: str,
    evaluation_set: EvaluationSet,
    protocols: Sequence[Protocol],
    embed_draw: Callable[[int], GalleryEmbeddings],
) -> dict[str, Any]:
    """Return the report: see `docs/use/publishing.md`. `embed_draw(i)` is called for one draw after another."""
    draws: list[dict[str, Any]] = []
    ranked: list[Ranked] = []
    decided: list[OpenSetOutcomes] = []
    curves: dict[str, Any] = {}
    metric: Distance = EUCLIDEAN
    for i, protocol in enumerate(protocols):
        embeddings = embed_draw(i)
        start, metric = time.perf_counter(), embeddings.metric
        ranked.append(
            rank_protocol(
                embeddings.rows,
                protocol,
                metric=metric,
                values=evaluation_set.values,
                tolerance=evaluation_set.tolerance,
            )
        )
        seconds = embeddings.seconds | {"rank_seconds": time.perf_counter() - start}
        draws.append(_summarise_draw(protocol, ranked[-1]) | seconds)
        curves = curves or _measure_curves(evaluation_set, protocol, embeddings)
        if protocol.open_set and evaluation_set.values is None:
            decided.append(search_open_set(embeddings.rows, protocol, metric))
    pooled = summarise(ranked, protocol=protocols[0].name, task=task, metric=metric)
    figures = [k for k, v in draws[0].items() if isinstance(v, float)]
    values = {k: [d[k] for d in draws] for k in figures}
    return {
        "mean": {k: float(np.mean(v)) for k, v in values.items()},
        "sd": {k: float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for k, v in values.items()},
        "draws": draws,
        "pooled": pooled.to_dict(),
        "outcomes": [_list_outcomes(evaluation_set, p, r) for p, r in zip(protocols, ranked, strict=True)],
        **curves,
        **({"open_set": summarise_open_set(decided)} if decided else {}),
    }


def _list_outcomes(evaluation_set: EvaluationSet, protocol: Protocol, ranked: Ranked) -> dict[str, Any]:
    """List the average precision and the first relevant rank of each query, to compare another model with."""
    return {
        "name": protocol.name,
        "gallery": ranked.gallery,
        "faces": [evaluation_set.gallery[q].pk for q in protocol.queries],
        "people": ranked.groups.tolist(),
        "map": np.round(average_precisions(ranked), 6).tolist(),
        "first": ranked.first.tolist(),
    }


def _summarise_draw(protocol: Protocol, ranked: Ranked) -> dict[str, Any]:
    misses = {f"fnir@{f:g}": misses_at_fpir(ranked.mate, ranked.stranger[ranked.strangers], f) for f in FPIRS}
    return {
        "name": protocol.name,
        "queries": int(ranked.mated.sum()),
        "gallery": ranked.gallery,
        "missing": len(protocol.missing),
        "missing_queries": list(protocol.missing[:MAX_MISSING_SHOWN]),
        "map": float(np.nanmean(average_precisions(ranked))),
        **{f"1-call@{k}": float(np.nanmean(n_call(ranked, k))) for k in CALL_RANKS},
        **{name: float(np.nanmean(missed)) for name, missed in misses.items()},
        "eer": det(ranked.genuine, ranked.impostor).eer if len(ranked.genuine) and len(ranked.impostor) else math.nan,
    }


def _measure_curves(evaluation_set: EvaluationSet, protocol: Protocol, embeddings: GalleryEmbeddings) -> dict[str, Any]:
    """Measure on one draw: speed against accuracy over cells, retrieval over distractors, and NMI."""
    curves: dict[str, Any] = {"curve": [], "distractor_curve": [], "nmi": None}
    if embeddings.rows.shape[1] <= MAX_SEARCH_DIM:
        curves["nmi"] = _measure_nmi(protocol, embeddings)
        index = indexes.build(protocol.gallery, embeddings.rows[protocol.gallery], embeddings.metric)
        people = protocol.people.astype(np.float64)
        value_of = dict(zip(protocol.gallery.tolist(), people[protocol.gallery].tolist(), strict=True))
        points = speed_accuracy(
            index, embeddings.rows[protocol.queries], values=people[protocol.queries], value_of=value_of
        )
        curves["curve"] = [asdict(p) for p in points]
    if evaluation_set.distractors:
        others = embeddings.embed(evaluation_set.distractors)
        points_over_n = distractor_curve(embeddings.rows, protocol, others, metric=embeddings.metric)
        curves["distractor_curve"] = [asdict(p) for p in points_over_n]
    return curves


def _measure_nmi(protocol: Protocol, embeddings: GalleryEmbeddings) -> dict[str, Any] | None:
    """Measure how well clusters match people, over all faces of the people searched for.

    Returns None for inner products, which have no means, or where it would take too long.
    """
    faces = np.concatenate([protocol.queries, protocol.gallery])
    faces = faces[np.isin(protocol.people[faces], protocol.people[protocol.queries]) & (protocol.people[faces] >= 0)]
    people = protocol.people[faces]
    clusters = len(np.unique(people))
    if not embeddings.metric.is_euclidean or clusters < 2 or clusters * len(faces) > MAX_CLUSTERING_WORK:
        return None
    return asdict(measure_cluster_nmi(embeddings.rows[faces], people)) | {"people": clusters, "faces": len(faces)}
