"""How well a ranking puts the faces that matter first: AP, n-call@K, Recall@K, CMC.

Everything follows from one thing, the ranks at which the relevant faces of a query stand, so that is computed once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.distances import EUCLIDEAN, Distance
from ml.errors import WrongShape
from ml.types import Ids, Rows

CHUNK_BYTES = 64 << 20
SORT_FROM = 64
"""Relevant faces of one query from which sorting the gallery is cheaper than counting for each."""


@dataclass(frozen=True, eq=False)
class Ranked:
    """What a ranking of the whole gallery says of each query.

    ranks: one (R_q,) int64 array a query, rising, 1 is the nearest; empty where nothing in the gallery is relevant
    groups: (Q,) float64, the query's own value (its person), by which intervals resample
    mate, stranger: (Q,) float32 distance of the nearest relevant and of the nearest other face, +inf where none
    genuine, impostor: float32 distances of relevant and (sampled) other pairs, one query after the other
    sampled: (Q,) how many impostor pairs of each query there are
    impostor_ids: the id of the gallery's face in each impostor pair
    gallery: faces that were ranked, the query itself not counted
    open_set: whether the queries with nothing to find are of people left out on purpose; they alone are strangers then,
        else every query stands for one as well, its own person taken out
    """

    ranks: tuple[Ids, ...]
    groups: NDArray[np.float64]
    mate: NDArray[np.float32]
    stranger: NDArray[np.float32]
    genuine: NDArray[np.float32]
    impostor: NDArray[np.float32]
    sampled: Ids
    impostor_ids: Ids
    gallery: int
    open_set: bool = False

    @property
    def strangers(self) -> NDArray[np.bool_]:
        """(Q,) which queries stand for somebody who is not enrolled."""
        return ~self.mated if self.open_set else np.ones(len(self.ranks), bool)

    @property
    def mated(self) -> NDArray[np.bool_]:
        """(Q,) whether the query has anything to be found; the metrics are means over these alone."""
        return np.array([len(r) > 0 for r in self.ranks], bool)

    @property
    def first(self) -> NDArray[np.float64]:
        """(Q,) the rank of the nearest relevant face, NaN where nothing is relevant."""
        return np.array([r[0] if len(r) else np.nan for r in self.ranks], np.float64)

    @property
    def genuine_of(self) -> NDArray[np.float64]:
        """The group of each genuine pair's query; `impostor_of` the same of the impostors."""
        return np.repeat(self.groups, [len(r) for r in self.ranks])

    @property
    def impostor_of(self) -> NDArray[np.float64]:
        return np.repeat(self.groups, self.sampled)


@dataclass(frozen=True, eq=False)
class Faces:
    """Embedded faces of one side. rows: (N, d); values: (N,) float64, NaN unknown (a distractor); ids: (N,) unique."""

    rows: Rows
    values: NDArray[np.float64]
    ids: Ids


def rank(
    queries: Faces,
    gallery: Faces,
    *,
    metric: Distance = EUCLIDEAN,
    tolerance: float = 0.0,
    impostors: int = 1000,
    seed: int = 0,
) -> Ranked:
    """Ranks the whole gallery for every query; ties by id; a face is never ranked for itself (same id).

    Relevant is what differs by at most `tolerance` in value. At most `impostors` pairs of a query are kept for the
    DET curve, drawn with `seed`. Memory stays near CHUNK_BYTES beside the embeddings. Raises WrongShape.
    """
    if queries.rows.ndim != 2 or queries.rows.shape[1:] != gallery.rows.shape[1:]:
        raise WrongShape("queries", f"(Q, {gallery.rows.shape[-1]})", queries.rows.shape)
    order = np.argsort(gallery.ids, kind="stable")
    ids, values, rows = gallery.ids[order], gallery.values[order], gallery.rows[order]
    draw = np.random.default_rng(seed)
    step = max(1, CHUNK_BYTES // (8 * max(1, len(ids))))
    parts = []
    for start in range(0, len(queries.ids), step):
        block = metric.distances(queries.rows[start : start + step], rows)
        for q, row in enumerate(block, start):
            other = ids != queries.ids[q]
            same = np.abs(values - queries.values[q]) <= tolerance
            parts.append(_of_one(row[other], same[other], ids[other], draw, impostors))
    ranks, mate, stranger, genuine, impostor, impostor_ids = zip(*parts, strict=True) if parts else ((),) * 6
    return Ranked(
        ranks,
        queries.values.astype(np.float64),
        np.array(mate, np.float32),
        np.array(stranger, np.float32),
        _joined(genuine),
        _joined(impostor),
        np.array([len(part) for part in impostor], np.int64),
        np.concatenate([np.empty(0, np.int64), *impostor_ids]),
        len(ids) - int(np.isin(queries.ids, ids).any()),
    )


def _joined(parts: tuple[NDArray[np.float32], ...]) -> NDArray[np.float32]:
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


def _of_one(
    distances: NDArray[np.float32], same: NDArray[np.bool_], ids: Ids, draw: np.random.Generator, impostors: int
) -> tuple[Ids, np.float32, np.float32, NDArray[np.float32], NDArray[np.float32], Ids]:
    genuine, others = distances[same], np.flatnonzero(~same)
    nearest = [part.min(initial=np.float32(np.inf)) for part in (genuine, distances[others])]
    kept = others if len(others) <= impostors else draw.choice(others, impostors, replace=False)
    return ranks_of(distances, np.flatnonzero(same)), nearest[0], nearest[1], genuine, distances[kept], ids[kept]


def ranks_of(distances: NDArray[np.float32], relevant: Ids) -> Ids:
    """The rising 1-based ranks of these places of a (N,) line of distances; of equal distances the earlier is first."""
    if len(relevant) >= SORT_FROM:
        ranks = np.empty(len(distances), np.int64)
        ranks[np.argsort(distances, kind="stable")] = np.arange(1, len(distances) + 1)
        return np.sort(ranks[relevant])
    nearer = [
        np.count_nonzero(distances < distances[p]) + np.count_nonzero(distances[:p] == distances[p]) for p in relevant
    ]
    return np.sort(np.array(nearer, np.int64) + 1)


def average_precision(ranks: Ids) -> float:
    """Non-interpolated AP over the full ranking: the mean of j / rank of the j-th relevant. NaN without any.

    ranks: (R,) of the relevant, rising from 1.
    """
    return float(np.mean(np.arange(1, len(ranks) + 1) / ranks)) if len(ranks) else float("nan")


def average_precisions(ranked: Ranked) -> NDArray[np.float64]:
    """(Q,) AP of each query, NaN where nothing is relevant."""
    return np.array([average_precision(r) for r in ranked.ranks], np.float64)


def n_call(ranked: Ranked, k: int, n: int = 1) -> NDArray[np.float64]:
    """(Q,) 1.0 where at least n of the first k are relevant (Chen and Karger 2006), NaN where nothing is.

    With n = 1 and the query left out this is Recall@K as metric-learning papers count it.
    """
    hit = [float(len(r) >= n and r[n - 1] <= k) if len(r) else np.nan for r in ranked.ranks]
    return np.array(hit, np.float64)


def nearest_error(ranked: Ranked) -> NDArray[np.float64]:
    """(Q,) 1.0 where the nearest face is not a relevant one: the error of 1-nearest-neighbour classification."""
    return 1 - n_call(ranked, 1)


def cmc(ranked: Ranked, longest: int) -> NDArray[np.float64]:
    """(longest,) share of the mated queries whose nearest relevant face is among the first 1, 2, ..., longest."""
    first = ranked.first[ranked.mated]
    if not len(first):
        return np.full(longest, np.nan)
    return np.asarray((first[:, None] <= np.arange(1, longest + 1)).mean(0), np.float64)
