"""An evaluation's figures: each draw ranked, all of them together, and what depends on cells and distractors."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ml import indexes
from ml.distances import EUCLIDEAN, Distance
from ml.evaluation.clustering import nmi_of
from ml.evaluation.curves import distractor_curve, speed_accuracy
from ml.evaluation.open_set import OpenSetOutcomes, search_open_set, summarise_open_set
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import CALLS, FPIRS, rank_protocol, summarise
from ml.evaluation.retrieval import Ranked, average_precisions, n_call
from ml.evaluation.verification import det, misses_at_fpir
from workers.evaluating.dataset import Entrants
from workers.evaluating.embeddings import Placed

WIDEST = 2048  # wider embeddings are searched flat in practice, and k-means over them takes minutes
SHOWN = 100
HEAVIEST = 10_000_000  # people times faces: half a minute of k-means


def judged(
    task: str, entrants: Entrants, protocols: Sequence[Protocol], placed: Callable[[int], Placed]
) -> dict[str, Any]:
    """The report: see `docs/use/publishing.md`. `placed(i)` is asked for one draw after the other, and none is held."""
    draws: list[dict[str, Any]] = []
    ranked: list[Ranked] = []
    decided: list[OpenSetOutcomes] = []
    curves: dict[str, Any] = {}
    metric: Distance = EUCLIDEAN
    for i, protocol in enumerate(protocols):
        here = placed(i)
        start, metric = time.perf_counter(), here.metric
        ranked.append(
            rank_protocol(here.rows, protocol, metric=metric, values=entrants.values, tolerance=entrants.tolerance)
        )
        seconds = here.seconds | {"rank_seconds": time.perf_counter() - start}
        draws.append(_draw(protocol, ranked[-1]) | seconds)
        curves = curves or _curves(entrants, protocol, here)
        if protocol.open_set and entrants.values is None:
            decided.append(search_open_set(here.rows, protocol, metric))
    pooled = summarise(ranked, protocol=protocols[0].name, task=task, metric=metric)
    figures = [k for k, v in draws[0].items() if isinstance(v, float)]
    values = {k: [d[k] for d in draws] for k in figures}
    return {
        "mean": {k: float(np.mean(v)) for k, v in values.items()},
        "sd": {k: float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for k, v in values.items()},
        "draws": draws,
        "pooled": pooled.to_dict(),
        "outcomes": [_outcomes(entrants, p, r) for p, r in zip(protocols, ranked, strict=True)],
        **curves,
        **({"open_set": summarise_open_set(decided)} if decided else {}),
    }


def _outcomes(entrants: Entrants, protocol: Protocol, ranked: Ranked) -> dict[str, Any]:
    """What came of each query, to compare another model with: AP and the rank of the nearest relevant face, or None."""
    return {
        "name": protocol.name,
        "gallery": ranked.gallery,
        "faces": [entrants.gallery[q].pk for q in protocol.queries],
        "people": ranked.groups.tolist(),
        "map": np.round(average_precisions(ranked), 6).tolist(),
        "first": ranked.first.tolist(),
    }


def _draw(protocol: Protocol, ranked: Ranked) -> dict[str, Any]:
    misses = {f"fnir@{f:g}": misses_at_fpir(ranked.mate, ranked.stranger[ranked.strangers], f) for f in FPIRS}
    return {
        "name": protocol.name,
        "queries": int(ranked.mated.sum()),
        "gallery": ranked.gallery,
        "missing": len(protocol.missing),
        "missing_queries": list(protocol.missing[:SHOWN]),
        "map": float(np.nanmean(average_precisions(ranked))),
        **{f"1-call@{k}": float(np.nanmean(n_call(ranked, k))) for k in CALLS},
        **{name: float(np.nanmean(missed)) for name, missed in misses.items()},
        "eer": det(ranked.genuine, ranked.impostor).eer if len(ranked.genuine) and len(ranked.impostor) else math.nan,
    }


def _curves(entrants: Entrants, protocol: Protocol, here: Placed) -> dict[str, Any]:
    """Speed against accuracy over m, retrieval over distractors, NMI: on the first draw."""
    told: dict[str, Any] = {"curve": [], "distractor_curve": [], "nmi": None}
    if here.rows.shape[1] <= WIDEST:
        told["nmi"] = _nmi(protocol, here)
        index = indexes.build(protocol.gallery, here.rows[protocol.gallery], here.metric)
        people = protocol.people.astype(np.float64)
        value_of = dict(zip(protocol.gallery.tolist(), people[protocol.gallery].tolist(), strict=True))
        points = speed_accuracy(index, here.rows[protocol.queries], values=people[protocol.queries], value_of=value_of)
        told["curve"] = [asdict(p) for p in points]
    if entrants.distractors:
        others = here.place(entrants.distractors)
        points_over_n = distractor_curve(here.rows, protocol, others, metric=here.metric)
        told["distractor_curve"] = [asdict(p) for p in points_over_n]
    return told


def _nmi(protocol: Protocol, here: Placed) -> dict[str, Any] | None:
    """Of all faces of the people searched for; None for inner products, that have no means, or where it takes long."""
    faces = np.concatenate([protocol.queries, protocol.gallery])
    faces = faces[np.isin(protocol.people[faces], protocol.people[protocol.queries]) & (protocol.people[faces] >= 0)]
    people = protocol.people[faces]
    heaps = len(np.unique(people))
    if not here.metric.is_euclidean or heaps < 2 or heaps * len(faces) > HEAVIEST:
        return None
    return asdict(nmi_of(here.rows[faces], people)) | {"people": heaps, "faces": len(faces)}
