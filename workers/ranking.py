"""An evaluation's figures: each draw ranked, all of them together, and what depends on cells and distractors."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ml import indexes
from ml.evaluation.curves import distractor_curve, speed_accuracy
from ml.evaluation.protocols import Protocol
from ml.evaluation.report import CALLS, FPIRS, rank_protocol, summarise
from ml.evaluation.retrieval import Ranked, average_precisions, n_call
from ml.evaluation.verification import det, misses_at_fpir
from ml.metric import EUCLIDEAN, Metric
from ml.types import Rows
from workers.entrants import Entrant, Entrants

WIDEST = 2048  # wider embeddings are searched flat in practice, and k-means over them takes minutes
SHOWN = 100


@dataclass(frozen=True, eq=False)
class Placed:
    """Where the gallery lies under one draw's model. place: the same for other faces; seconds: what it took."""

    rows: Rows
    metric: Metric
    place: Callable[[Sequence[Entrant]], Rows]
    seconds: dict[str, float]


def judged(
    task: str, entrants: Entrants, protocols: Sequence[Protocol], placed: Callable[[int], Placed]
) -> dict[str, Any]:
    """The report: see `docs/publishing.md`. `placed(i)` is asked for one draw after the other, and none is held."""
    draws: list[dict[str, Any]] = []
    ranked: list[Ranked] = []
    curves: dict[str, Any] = {}
    metric: Metric = EUCLIDEAN
    for i, protocol in enumerate(protocols):
        here = placed(i)
        start, metric = time.perf_counter(), here.metric
        ranked.append(
            rank_protocol(here.rows, protocol, metric=metric, values=entrants.values, tolerance=entrants.tolerance)
        )
        seconds = here.seconds | {"rank_seconds": time.perf_counter() - start}
        draws.append(_draw(protocol, ranked[-1]) | seconds)
        curves = curves or _curves(entrants, protocol, here)
    pooled = summarise(ranked, protocol=protocols[0].name, task=task, metric=metric)
    figures = [k for k, v in draws[0].items() if isinstance(v, float)]
    values = {k: [d[k] for d in draws] for k in figures}
    return {
        "mean": {k: float(np.mean(v)) for k, v in values.items()},
        "sd": {k: float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for k, v in values.items()},
        "draws": draws,
        "pooled": pooled.to_dict(),
        **curves,
    }


def _draw(protocol: Protocol, ranked: Ranked) -> dict[str, Any]:
    misses = {f"fnir@{f:g}": misses_at_fpir(ranked.mate, ranked.stranger, f) for f in FPIRS}
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
    """Speed against accuracy over m, and retrieval over distractors: on the first draw."""
    told: dict[str, Any] = {"curve": [], "distractor_curve": []}
    if here.rows.shape[1] <= WIDEST:
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
