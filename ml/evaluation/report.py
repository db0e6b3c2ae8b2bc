"""Make the report of a model from embeddings and a protocol."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ml.distances import EUCLIDEAN, Distance
from ml.errors import WrongShape
from ml.evaluation.identification import Probes, fnir
from ml.evaluation.intervals import Interval, Times, bootstrap, bootstrap_mean, bootstrap_rate, widen_at_bounds
from ml.evaluation.protocols import Protocol
from ml.evaluation.records import DetPoint, EvaluationReport
from ml.evaluation.retrieval import Faces, Ranked, average_precisions, n_call, nearest_error, rank
from ml.evaluation.separation import Scored, Separation, separation
from ml.evaluation.verification import Det, det, thinned
from ml.types import Ids, Rows

CALL_RANKS = (1, 2, 5, 10, 20)
FPIRS = (0.01, 0.1)
MAX_CMC_RANK = 50


def rank_protocol(
    embeddings: Rows,
    protocol: Protocol,
    *,
    metric: Distance = EUCLIDEAN,
    values: NDArray[np.float64] | None = None,
    tolerance: float = 0.0,
    distractors: Rows | None = None,
) -> Ranked:
    """Rank the gallery of a protocol, with (M, d) distractors added, for each of its queries.

    embeddings: (N, d), one row per photo of the protocol
    values: (N,) value that the task compares; None: the people. Faces are relevant if their values differ by at most
        `tolerance`.
    """
    if len(embeddings) != len(protocol.people):
        raise WrongShape("embeddings", f"({len(protocol.people)}, d)", embeddings.shape)
    labels = np.where(protocol.people < 0, np.nan, protocol.people).astype(np.float64) if values is None else values
    extra = np.empty((0, embeddings.shape[1]), np.float32) if distractors is None else distractors
    gallery = Faces(
        np.concatenate([embeddings[protocol.gallery], extra]),
        np.concatenate([labels[protocol.gallery], np.full(len(extra), np.nan)]),
        np.concatenate([protocol.gallery, len(embeddings) + np.arange(len(extra))]),
    )
    queries = Faces(embeddings[protocol.queries], labels[protocol.queries], protocol.queries)
    ranked = rank(queries, gallery, metric=metric, tolerance=tolerance)
    return replace(ranked, groups=_owners(protocol.people, protocol.queries), open_set=protocol.open_set)


def _owners(people: Ids, queries: Ids) -> NDArray[np.float64]:
    """Return the person of each query. Each query of an unknown person is a group of its own."""
    return np.where(people[queries] < 0, -1 - queries, people[queries]).astype(np.float64)


def summarise(
    draws: Sequence[Ranked], *, protocol: str, task: str = "identity", metric: Distance = EUCLIDEAN
) -> EvaluationReport:
    """Summarise one or more draws of queries in one report. Raises WrongShape if no query has a relevant face."""
    groups = np.concatenate([r.groups for r in draws])
    mated = sum(int(r.mated.sum()) for r in draws)
    if not mated:
        raise WrongShape("queries", "some with a relevant face in the gallery", 0)
    precisions = [average_precisions(r) for r in draws]
    calls = {str(k): [n_call(r, k) for r in draws] for k in CALL_RANKS}
    curve = det(np.concatenate([r.genuine for r in draws]), np.concatenate([r.impostor for r in draws]))
    probes = [Probes(r.mate, r.stranger[r.strangers], r.groups, r.groups[r.strangers]) for r in draws]
    rank_curve, separated = _cmc(draws), _separation(draws, metric)

    return EvaluationReport(
        protocol,
        task,
        metric.label,
        draws=len(draws),
        queries=mated,
        gallery=draws[0].gallery,
        relevant=sum(len(r) for one in draws for r in one.ranks),
        chance_at_10=_chance([len(r) for one in draws for r in one.ranks if len(r)], draws[0].gallery, 10),
        mean_average_precision=bootstrap_mean(np.concatenate(precisions), groups),
        ncall={k: bootstrap_rate(np.concatenate(v), groups) for k, v in calls.items()},
        cmc=tuple(one.value for one in rank_curve),
        cmc_low=tuple(one.low for one in rank_curve),
        cmc_high=tuple(one.high for one in rank_curve),
        fnir={f"{f:g}": one for f, one in zip(FPIRS, fnir(probes, FPIRS), strict=True)},
        nearest_error=bootstrap_rate(np.concatenate([nearest_error(r) for r in draws]), groups),
        eer=separated.eer.value,
        separation=separated,
        det=_points(curve),
        sd=_spread({"mean_average_precision": precisions} | {f"{k}-call": v for k, v in calls.items()}),
    )


def _cmc(draws: Sequence[Ranked]) -> tuple[Interval, ...]:
    """Return the share of mated queries found within the first 1, 2, ..., MAX_CMC_RANK ranks, over all draws."""
    first = np.concatenate([r.first for r in draws])
    mated = np.isfinite(first)
    _, person = np.unique(np.concatenate([r.groups for r in draws])[mated], return_inverse=True)
    ranks = np.minimum(first[mated], MAX_CMC_RANK + 1).astype(np.int64) - 1
    width = MAX_CMC_RANK + 1
    counted = np.bincount(person * width + ranks, minlength=(person.max() + 1) * width).reshape(-1, width)

    def figures(times: Times) -> NDArray[np.float64]:
        within = np.cumsum(times @ counted, axis=1)
        return np.asarray(within[:, :-1] / within[:, -1:], np.float64)

    return tuple(widen_at_bounds(one, len(counted)) for one in bootstrap(figures, len(counted)))


def _separation(draws: Sequence[Ranked], metric: Distance) -> Separation:
    genuine = [Scored(metric.display_distance(r.genuine), r.genuine_of) for r in draws]
    return separation(genuine, [Scored(metric.display_distance(r.impostor), r.impostor_of) for r in draws])


def _chance(relevant: Sequence[int], gallery: int, k: int) -> float:
    """Return 1-call@k of a random ranking: 1 - C(gallery - R, k) / C(gallery, k), averaged over queries."""
    rank = np.arange(k)[:, None]
    missed = np.maximum(gallery - np.array(relevant)[None] - rank, 0) / np.maximum(gallery - rank, 1)
    return float(np.mean(1 - missed.prod(0)))


def _spread(figures: dict[str, list[NDArray[np.float64]]]) -> dict[str, float] | None:
    """Return the standard deviation over draws of the mean of each metric."""
    if len(next(iter(figures.values()))) < 2:
        return None
    return {name: float(np.std([np.nanmean(v) for v in draws], ddof=1)) for name, draws in figures.items()}


def _points(curve: Det) -> tuple[DetPoint, ...]:
    points = thinned(curve)
    rows = zip(points.threshold.tolist(), points.fmr.tolist(), points.fnmr.tolist(), strict=True)
    return tuple(DetPoint(t if np.isfinite(t) else None, a, b) for t, a, b in rows)
