"""Retrieval metrics: AP, n-call@K, Recall@K, CMC.

All of them follow from the ranks of the relevant faces of each query, which are computed once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.distances import EUCLIDEAN, Distance
from ml.errors import WrongShape
from ml.types import Ids, Rows

CHUNK_BYTES = 64 << 20
MIN_RELEVANT_TO_SORT = 64
"""If a query has at least this many relevant faces, sorting the gallery is faster than counting for each of them."""


@dataclass(frozen=True, eq=False)
class Ranked:
    """The rankings of the whole gallery for Q queries.

    ranks: for each query, the (R_q,) int64 ranks of its relevant faces, rising from 1; empty if it has none
    groups: (Q,) float64 value of each query (its person), the unit of resampling
    mate, stranger: (Q,) float32 distance of the nearest relevant and of the nearest other face, +inf if there is none
    genuine, impostor: float32 distances of relevant and of (sampled) other pairs, query after query
    sampled: (Q,) number of impostor pairs of each query
    impostor_ids: id of the gallery face in each impostor pair
    gallery: number of faces ranked, without the query itself
    open_set: if true, the queries without relevant faces are of people left out on purpose, and only they are
        strangers. Otherwise every query also counts as a stranger's, with its own person left out.
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
        """(Q,) which queries count as strangers' searches."""
        return ~self.mated if self.open_set else np.ones(len(self.ranks), bool)

    @property
    def mated(self) -> NDArray[np.bool_]:
        """(Q,) whether a query has relevant faces; the metrics are means over these queries only."""
        return np.array([len(r) > 0 for r in self.ranks], bool)

    @property
    def first(self) -> NDArray[np.float64]:
        """(Q,) rank of the nearest relevant face, NaN if there is none."""
        return np.array([r[0] if len(r) else np.nan for r in self.ranks], np.float64)

    @property
    def genuine_of(self) -> NDArray[np.float64]:
        """The group of the query of each genuine pair. `impostor_of` is the same for impostor pairs."""
        return np.repeat(self.groups, [len(r) for r in self.ranks])

    @property
    def impostor_of(self) -> NDArray[np.float64]:
        return np.repeat(self.groups, self.sampled)


@dataclass(frozen=True, eq=False)
class Faces:
    """Embedded faces. rows: (N, d); values: (N,) float64, NaN if unknown (a distractor); ids: (N,), unique."""

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
    """Rank the whole gallery for every query. Ties are ordered by id; a face is never ranked for itself (same id).

    Faces are relevant if their values differ by at most `tolerance`. At most `impostors` pairs per query, drawn with
    `seed`, are kept for the DET curve. Takes about CHUNK_BYTES of memory besides the embeddings. Raises WrongShape.
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
    """Return the 1-based ranks, rising, of the relevant positions in (N,) distances. Ties keep their order."""
    if len(relevant) >= MIN_RELEVANT_TO_SORT:
        ranks = np.empty(len(distances), np.int64)
        ranks[np.argsort(distances, kind="stable")] = np.arange(1, len(distances) + 1)
        return np.sort(ranks[relevant])
    nearer = [
        np.count_nonzero(distances < distances[p]) + np.count_nonzero(distances[:p] == distances[p]) for p in relevant
    ]
    return np.sort(np.array(nearer, np.int64) + 1)


def average_precision(ranks: Ids) -> float:
    """Compute non-interpolated AP over the full ranking: the mean of j / rank of the j-th relevant face.

    ranks: (R,) ranks of the relevant faces, rising from 1. Returns NaN if R is 0.
    """
    return float(np.mean(np.arange(1, len(ranks) + 1) / ranks)) if len(ranks) else float("nan")


def average_precisions(ranked: Ranked) -> NDArray[np.float64]:
    """Return the (Q,) AP of each query, NaN if it has no relevant face."""
    return np.array([average_precision(r) for r in ranked.ranks], np.float64)


def n_call(ranked: Ranked, k: int, n: int = 1) -> NDArray[np.float64]:
    """Return (Q,) 1.0 if at least n of the first k faces are relevant (Chen and Karger 2006), NaN if none exists.

    With n = 1 this is Recall@K as metric-learning papers define it.
    """
    hit = [float(len(r) >= n and r[n - 1] <= k) if len(r) else np.nan for r in ranked.ranks]
    return np.array(hit, np.float64)


def nearest_error(ranked: Ranked) -> NDArray[np.float64]:
    """Return (Q,) 1.0 if the nearest face is not relevant: the error of 1-nearest-neighbour classification."""
    return 1 - n_call(ranked, 1)


def cmc(ranked: Ranked, longest: int) -> NDArray[np.float64]:
    """Return (longest,) the share of mated queries whose nearest relevant face has rank 1, 2, ..., longest or less."""
    first = ranked.first[ranked.mated]
    if not len(first):
        return np.full(longest, np.nan)
    return np.asarray((first[:, None] <= np.arange(1, longest + 1)).mean(0), np.float64)
