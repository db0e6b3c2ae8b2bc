"""What a model's report says, and how it is made from embeddings and a protocol."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ml.errors import Corrupt, WrongShape
from ml.evaluation.intervals import Interval, bootstrap_mean
from ml.evaluation.protocols import Protocol
from ml.evaluation.retrieval import Faces, Ranked, average_precisions, cmc, n_call, rank
from ml.evaluation.verification import Det, det, misses_at_fpir, thinned
from ml.metric import EUCLIDEAN, Kind, Metric
from ml.types import Rows

CALLS = (1, 2, 5, 10, 20)
FPIRS = (0.01, 0.1)
LONGEST = 50


@dataclass(frozen=True)
class DetPoint:
    threshold: float | None
    fmr: float
    fnmr: float


@dataclass(frozen=True)
class DistractorPoint:
    """Retrieval with so many distractors added to the gallery."""

    distractors: int
    mean_average_precision: Interval
    one_call_at_10: Interval


@dataclass(frozen=True)
class Report:
    """Retrieval under one protocol; plain numbers, in JSON and back (`to_dict`, `from_dict`). Rates are 0..1.

    draws: query draws pooled; queries: with something to find; gallery: faces ranked for each, distractors included
    chance_at_10: 1-call@10 of a random order; sd: over draws, None of one draw
    ncall, fnir: by K, by FPIR (keys as text); cmc: at 1, 2, ..., 50
    det: over query-gallery pairs, thinned to be drawn; eer: of the whole curve
    Intervals are 95 %, bootstrapped over people, all draws of a person together.
    """

    protocol: str
    task: str
    metric: Kind
    draws: int
    queries: int
    gallery: int
    relevant: int
    chance_at_10: float
    mean_average_precision: Interval
    ncall: dict[str, Interval]
    cmc: tuple[float, ...]
    fnir: dict[str, Interval]
    eer: float
    det: tuple[DetPoint, ...]
    sd: dict[str, float] | None = None
    distractor_curve: tuple[DistractorPoint, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """What `to_dict` wrote, also after JSON. Raises Corrupt."""
        try:
            return cls(
                **state
                | {
                    "mean_average_precision": Interval(**state["mean_average_precision"]),
                    "ncall": {k: Interval(**v) for k, v in state["ncall"].items()},
                    "fnir": {k: Interval(**v) for k, v in state["fnir"].items()},
                    "cmc": tuple(state["cmc"]),
                    "det": tuple(DetPoint(**p) for p in state["det"]),
                    "distractor_curve": tuple(_distractor_point(p) for p in state["distractor_curve"]),
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"this is not a report: {error}") from error


def _distractor_point(state: dict[str, Any]) -> DistractorPoint:
    return DistractorPoint(
        state["distractors"],
        Interval(**state["mean_average_precision"]),
        Interval(**state["one_call_at_10"]),
    )


def rank_protocol(
    embeddings: Rows,
    protocol: Protocol,
    *,
    metric: Metric = EUCLIDEAN,
    values: NDArray[np.float64] | None = None,
    tolerance: float = 0.0,
    distractors: Rows | None = None,
) -> Ranked:
    """Ranks a protocol's gallery, and these (M, d) distractors behind it, for its queries.

    embeddings: (N, d), one row a photo of the protocol; values: (N,) what the task compares (people's numbers if None)
    """
    if len(embeddings) != len(protocol.people):
        raise WrongShape("embeddings", f"({len(protocol.people)}, d)", embeddings.shape)
    told = np.where(protocol.people < 0, np.nan, protocol.people).astype(np.float64) if values is None else values
    extra = np.empty((0, embeddings.shape[1]), np.float32) if distractors is None else distractors
    gallery = Faces(
        np.concatenate([embeddings[protocol.gallery], extra]),
        np.concatenate([told[protocol.gallery], np.full(len(extra), np.nan)]),
        np.concatenate([protocol.gallery, len(embeddings) + np.arange(len(extra))]),
    )
    queries = Faces(embeddings[protocol.queries], told[protocol.queries], protocol.queries)
    return rank(queries, gallery, metric=metric, tolerance=tolerance)


def summarise(draws: Sequence[Ranked], *, protocol: str, task: str = "identity", metric: Metric = EUCLIDEAN) -> Report:
    """One report of one or more draws of queries. Raises WrongShape where no query has anything to find."""
    groups = np.concatenate([r.groups for r in draws])
    mated = sum(int(r.mated.sum()) for r in draws)
    if not mated:
        raise WrongShape("queries", "some with a relevant face in the gallery", 0)
    precisions = [average_precisions(r) for r in draws]
    calls = {str(k): [n_call(r, k) for r in draws] for k in CALLS}
    misses = {f"{f:g}": [misses_at_fpir(r.mate, r.stranger, f) for r in draws] for f in FPIRS}
    curve = det(np.concatenate([r.genuine for r in draws]), np.concatenate([r.impostor for r in draws]))

    def pooled(parts: Sequence[NDArray[np.float64]]) -> Interval:
        return bootstrap_mean(np.concatenate(parts), groups)

    return Report(
        protocol,
        task,
        metric.kind,
        draws=len(draws),
        queries=mated,
        gallery=draws[0].gallery,
        relevant=sum(len(r) for one in draws for r in one.ranks),
        chance_at_10=_chance([len(r) for one in draws for r in one.ranks if len(r)], draws[0].gallery, 10),
        mean_average_precision=pooled(precisions),
        ncall={k: pooled(v) for k, v in calls.items()},
        cmc=tuple(float(v) for v in np.nanmean([cmc(r, LONGEST) for r in draws], axis=0)),
        fnir={k: pooled(v) for k, v in misses.items()},
        eer=curve.eer,
        det=_points(curve),
        sd=_spread({"mean_average_precision": precisions} | {f"{k}-call": v for k, v in calls.items()}),
    )


def _chance(relevant: Sequence[int], gallery: int, k: int) -> float:
    """1-call@k of a random order: 1 - C(gallery - R, k) / C(gallery, k), the mean over queries."""
    place = np.arange(k)[:, None]
    missed = np.maximum(gallery - np.array(relevant)[None] - place, 0) / np.maximum(gallery - place, 1)
    return float(np.mean(1 - missed.prod(0)))


def _spread(figures: dict[str, list[NDArray[np.float64]]]) -> dict[str, float] | None:
    """The standard deviation over draws of each figure's mean."""
    if len(next(iter(figures.values()))) < 2:
        return None
    return {name: float(np.std([np.nanmean(v) for v in draws], ddof=1)) for name, draws in figures.items()}


def _points(curve: Det) -> tuple[DetPoint, ...]:
    few = thinned(curve)
    rows = zip(few.threshold.tolist(), few.fmr.tolist(), few.fnmr.tolist(), strict=True)
    return tuple(DetPoint(t if np.isfinite(t) else None, a, b) for t, a, b in rows)
