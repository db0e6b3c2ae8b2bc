"""Curves: speed and accuracy by the number of cells probed, retrieval by the number of distractors."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ml.distances import EUCLIDEAN, Distance
from ml.evaluation.intervals import Interval, bootstrap_mean
from ml.evaluation.protocols import Protocol
from ml.evaluation.records import DistractorPoint
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import average_precisions, n_call
from ml.indexes.base import Index
from ml.types import Rows


@dataclass(frozen=True)
class SpeedPoint:
    """The performance of an index that probes m cells. Intervals resample queries, with the cells fixed.

    fraction: distances computed over the number of faces; recall: share of the true k nearest that are found
    one_call: 1-call@k, None if no values were given; milliseconds: median time of a single query
    """

    m: int
    fraction: Interval
    recall: Interval
    one_call: Interval | None
    milliseconds: float


def cells_to_try(cells: int) -> tuple[int, ...]:
    """Return the numbers of cells to measure: 1, 2, 4, ... and all of them."""
    return tuple(sorted({min(2**i, cells) for i in range(cells.bit_length() + 1)}))


def speed_accuracy(
    index: Index,
    queries: Rows,
    *,
    k: int = 10,
    ms: Sequence[int] | None = None,
    values: NDArray[np.float64] | None = None,
    value_of: dict[int, float] | None = None,
    timed: int = 100,
) -> tuple[SpeedPoint, ...]:
    """Measure speed and accuracy of (Q, d) queries for each m, compared with the exhaustive search (m = p).

    ms: numbers of cells to probe; None: see `cells_to_try`; timed: queries that are timed
    values: (Q,) value (such as the person) of each query; value_of: value of each id in the index. Both are needed for
        1-call@k. Queries must not be in the index.
    """
    exact = index.search(queries, k, m=index.cells).ids
    points = []
    for m in ms or cells_to_try(index.cells):
        neighbours = index.search(queries, k, m=m)
        shared = [len(np.intersect1d(a[a >= 0], b[b >= 0])) for a, b in zip(neighbours.ids, exact, strict=True)]
        recall = np.array(shared) / np.maximum((exact >= 0).sum(1), 1)
        hits = None if values is None or value_of is None else _hits(neighbours.ids, values, value_of)
        points.append(
            SpeedPoint(
                neighbours.m,
                bootstrap_mean(neighbours.fraction),
                bootstrap_mean(recall),
                None if hits is None else bootstrap_mean(hits),
                _median_ms(index, queries[:timed], k, m),
            )
        )
    return tuple(points)


def _hits(ids: NDArray[np.int64], values: NDArray[np.float64], value_of: dict[int, float]) -> NDArray[np.float64]:
    labels = np.array([[value_of.get(int(i), np.nan) for i in row] for row in ids])
    hit: NDArray[np.bool_] = (labels == values[:, None]).any(1)
    return hit.astype(np.float64)


def _median_ms(index: Index, queries: Rows, k: int, m: int) -> float:
    times = []
    for row in queries:
        start = perf_counter()
        index.search(row[None], k, m=m)
        times.append(perf_counter() - start)
    return 1000 * float(np.median(times))


def distractor_curve(
    embeddings: Rows,
    protocol: Protocol,
    distractors: Rows,
    *,
    counts: Sequence[int] | None = None,
    metric: Distance = EUCLIDEAN,
) -> tuple[DistractorPoint, ...]:
    """Measure retrieval with the first n of (M, d) distractors added to the gallery, for each n in `counts`.

    embeddings: (N, d), one row per photo of the protocol; counts: default 0 and each quarter of M
    """
    points = []
    for n in counts or [round(len(distractors) * part / 4) for part in range(5)]:
        ranked = rank_protocol(embeddings, protocol, metric=metric, distractors=distractors[:n])
        precision, call = average_precisions(ranked), n_call(ranked, 10)
        points.append(DistractorPoint(n, bootstrap_mean(precision, ranked.groups), bootstrap_mean(call, ranked.groups)))
    return tuple(points)
