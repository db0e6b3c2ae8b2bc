"""The curve of speed against accuracy, measured on this index and this machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from ml.indexes.base import Index
from ml.types import Rows

TIMED = 50


@dataclass(frozen=True)
class Point:
    """What probing m cells gives: recall of the true k nearest 0..1, fraction of distances computed, and the median
    milliseconds of a search by one vector."""

    m: int
    recall: float
    fraction: float
    ms: float


def tune(index: Index, queries: Rows, k: int = 10) -> tuple[Point, ...]:
    """The curve over m = 1, 2, 4, ... p for these (Q, d) queries, each timed alone.

    A neighbour counts when it is as near as the true k-th, so that ties lower no recall. Queries that the index holds
    find themselves first: the recall of such a curve is a little high.
    """
    truth = index.search(queries, k, m=index.cells).distances[:, -1:]
    ms = [1 << power for power in range(index.cells.bit_length()) if 1 << power < index.cells]
    return tuple(_point(index, queries, k, m, truth) for m in [*ms, index.cells])


def _point(index: Index, queries: Rows, k: int, m: int, truth: Rows) -> Point:
    found = index.search(queries, k, m=m)
    times = []
    for query in queries[:TIMED]:
        start = perf_counter()
        index.search(query[None], k, m=m)
        times.append((perf_counter() - start) * 1000)
    recall = (found.distances <= truth).mean() if found.distances.size else 1.0
    fraction = found.fraction.mean() if len(queries) else 0.0
    return Point(m, float(recall), float(fraction), median(times or [0.0]))


def choose(curve: Sequence[Point], *, target_recall: float | None = None, max_latency_ms: float | None = None) -> Point:
    """The point of a curve (by rising m) to search at: the cheapest that reaches the recall, among those that keep the
    time; the most accurate of these where none reaches it or no recall was asked; m = 1 where none is fast enough."""
    fast = [point for point in curve if max_latency_ms is None or point.ms <= max_latency_ms] or curve[:1]
    good = [point for point in fast if target_recall is not None and point.recall >= target_recall]
    return (good or fast[-1:])[0]
