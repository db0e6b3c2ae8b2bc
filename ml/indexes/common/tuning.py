"""Recall against latency, measured on this index and this machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from ml.indexes.base import Index
from ml.types import Rows

MAX_TIMED_QUERIES = 50


@dataclass(frozen=True)
class OperatingPoint:
    """What probing m cells achieves.

    recall: share of the true k nearest that are returned, 0..1
    fraction: distances computed over the number of faces
    ms: median milliseconds of a search by one vector
    """

    m: int
    recall: float
    fraction: float
    ms: float


def measure_curve(index: Index, queries: Rows, k: int = 10) -> tuple[OperatingPoint, ...]:
    """Measure the operating points m = 1, 2, 4, ... p with (Q, d) queries, each timed alone.

    A neighbour counts if it is as near as the true k-th, so that ties do not lower recall. Queries that are in the
    index find themselves first, which makes the recall slightly high.
    """
    limits = index.search(queries, k, m=index.cells).distances[:, -1:]
    ms = [1 << power for power in range(index.cells.bit_length()) if 1 << power < index.cells]
    return tuple(_measure_point(index, queries, k, m, limits) for m in [*ms, index.cells])


def _measure_point(index: Index, queries: Rows, k: int, m: int, limits: Rows) -> OperatingPoint:
    """limits: (Q, 1) distance of the true k-th neighbour."""
    neighbours = index.search(queries, k, m=m)
    times = []
    for query in queries[:MAX_TIMED_QUERIES]:
        start = perf_counter()
        index.search(query[None], k, m=m)
        times.append((perf_counter() - start) * 1000)
    recall = (neighbours.distances <= limits).mean() if neighbours.distances.size else 1.0
    fraction = neighbours.fraction.mean() if len(queries) else 0.0
    return OperatingPoint(m, float(recall), float(fraction), median(times or [0.0]))


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
