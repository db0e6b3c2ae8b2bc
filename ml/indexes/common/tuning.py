"""Recall against latency, measured on this index and this machine."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

from ml.indexes.base import Index
from ml.types import Rows

MAX_TIMED_QUERIES = 50


@dataclass(frozen=True)
class OperatingPoint:
    """What probing m cells achieves.

    recall: share of the true k nearest that are returned, 0..1
    fraction: distances computed over the number of faces
    ms: median milliseconds of a search by one vector
    candidates: how many faces the second stage ranked; None: all that the first stage found, or there is one stage
    """

    m: int
    recall: float
    fraction: float
    ms: float
    candidates: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that have a value, for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class CandidatePoint:
    """What ranking so many candidates achieves.

    recall_at_1, recall: share of the nearest face, and of the k nearest, that the first stage keeps among all faces
    ms: median milliseconds of a search by one vector with the index's default m
    """

    candidates: int
    recall_at_1: float
    recall: float
    ms: float


def measure_curve(
    index: Index, queries: Rows, k: int = 10, candidates: int | None = None
) -> tuple[OperatingPoint, ...]:
    """Measure the operating points m = 1, 2, 4, ... p with (Q, d) queries, each timed alone.

    A neighbour counts if it is as near as the true k-th, so that ties do not lower recall. Queries that are in the
    index find themselves first, which makes the recall slightly high.
    candidates: how many faces the second stage ranks, except for m = p, which is exact; None: there is one stage
    """
    limits = index.search(queries, k, m=index.cells).distances[:, -1:]
    ms = [1 << power for power in range(index.cells.bit_length()) if 1 << power < index.cells]
    points = [_measure_point(index, queries, k, m, candidates, limits) for m in ms]
    return (*points, _measure_point(index, queries, k, index.cells, None, limits))


def measure_candidate_curve(
    index: Index, queries: Rows, max_candidates: int, k: int = 10
) -> tuple[CandidatePoint, ...]:
    """Measure how many of the k nearest the first stage keeps, by the number of candidates, with (Q, d) queries.

    Without a first stage there is no curve.
    The candidates are 2 k, 4 k, 8 k, ... up to the first number that keeps all, and up to `max_candidates`, but 2 k
    at least. All cells are probed, so that only the first stage can miss a face.
    """
    if index.default_candidates is None or not len(queries):
        return ()
    true = index.search(queries, k, m=index.cells).distances
    points: list[CandidatePoint] = []
    candidates = 2 * k
    while not points or (points[-1].recall < 1 and candidates <= max_candidates):
        distances = index.search(queries, k, m=index.cells, candidates=candidates).distances
        at_1, recall = (float((distances[:, :n] <= true[:, n - 1 : n]).mean()) for n in (1, k))
        ms = _time_searches(index, queries, k, None, candidates)
        points.append(CandidatePoint(candidates, at_1, recall, ms))
        candidates *= 2
    return tuple(points)


def choose_candidates(curve: Sequence[CandidatePoint], target_recall: float) -> CandidatePoint:
    """Choose the first point that reaches the recall; if none does, the one with the most candidates."""
    return next((point for point in curve if point.recall >= target_recall), curve[-1])


def _measure_point(index: Index, queries: Rows, k: int, m: int, candidates: int | None, limits: Rows) -> OperatingPoint:
    """limits: (Q, 1) distance of the true k-th neighbour."""
    neighbours = index.search(queries, k, m=m, candidates=candidates)
    recall = (neighbours.distances <= limits).mean() if neighbours.distances.size else 1.0
    fraction = neighbours.fraction.mean() if len(queries) else 0.0
    ms = _time_searches(index, queries, k, m, candidates)
    return OperatingPoint(m, float(recall), float(fraction), ms, candidates)


def _time_searches(index: Index, queries: Rows, k: int, m: int | None, candidates: int | None) -> float:
    """Return the median milliseconds of a search by one of (Q, d) queries."""
    times = []
    for query in queries[:MAX_TIMED_QUERIES]:
        start = perf_counter()
        index.search(query[None], k, m=m, candidates=candidates)
        times.append((perf_counter() - start) * 1000)
    return float(median(times or [0.0]))


def choose_operating_point(
    curve: Sequence[OperatingPoint], *, target_recall: float | None = None, max_latency_ms: float | None = None
) -> OperatingPoint:
    """Choose a point of a curve, which is ordered by m.

    Among the points within the latency, take the cheapest that reaches the recall; if none does, or no recall is
    requested, the most accurate. If no point is within the latency, take m = 1.
    """
    fast = [point for point in curve if max_latency_ms is None or point.ms <= max_latency_ms] or curve[:1]
    good = [point for point in fast if target_recall is not None and point.recall >= target_recall]
    return (good or fast[-1:])[0]
