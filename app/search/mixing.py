"""Ranking by several tasks at once: the union of each task's nearest, every one of them scored in all tasks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from app.search import places
from app.search.criteria import Criteria
from app.serving.deployments import Serving
from ml.indexes.base import Neighbours
from ml.types import Ids, Rows

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Mixed(Neighbours):
    """As Found, over the union.

    by_task: (Q, T, n) each task's own distance; ms: (T,) cells probed in each
    bound: (Q,) what no task has listed is at least so far, so that everything nearer is surely right (the threshold
        algorithm of Fagin, Lotem and Naor 2001); +inf where a list holds all that its cells do
    """

    by_task: Floats
    bound: Floats
    ms: tuple[int, ...]


def nearest(
    session: Session, criteria: Criteria, rows: Sequence[Rows], k: int, ms: Sequence[int | None], among: Ids | None
) -> Mixed:
    """Over the union of the k nearest of each task. rows: each task's (Q, dim). Raises Busy, WrongShape, NotFinite."""
    asked = zip(criteria.each, rows, ms, strict=True)
    lists = [c.serving.search(queries, k, m, among) for c, queries, m in asked]
    unions = [_union(session, criteria, lists, rows, q) for q in range(len(rows[0]))]
    most = max((len(ids) for ids, _, _ in unions), default=0)
    ids = np.full((len(unions), most), -1, np.int64)
    whole = np.full((len(unions), most), np.inf, np.float32)
    apart = np.full((len(unions), len(lists), most), np.inf, np.float32)
    for q, (found, total, by_task) in enumerate(unions):
        ids[q, : len(found)], whole[q, : len(found)], apart[q, :, : len(found)] = found, total, by_task
    last = np.array([f.distances[:, -1] for f in lists], np.float64)
    for own, criterion in zip(last, criteria.each, strict=True):
        if k >= (len(criterion.serving.index) if among is None else len(among)):
            own[:] = np.inf  # full to the last place, and nothing is left
    bound = np.array([c.factor for c in criteria.each]) @ last
    fraction = np.sum([f.fraction for f in lists], axis=0)
    told = tuple(f.m for f in lists)
    return Mixed(ids, whole, fraction, max(told), apart, np.asarray(bound, np.float32), told)


def _union(
    session: Session, criteria: Criteria, lists: Sequence[Neighbours], rows: Sequence[Rows], query: int
) -> tuple[Ids, Floats, Floats]:
    """Of one query: ids by rising distance of the mix, that distance, and (T, n) those of the tasks.

    A face that has no place in one of the tasks, since it was removed or has only just come, is left out.
    """
    union = np.unique(np.concatenate([listed.ids[query] for listed in lists]))
    union = union[union >= 0]
    by_task = np.full((len(lists), len(union)), np.nan, np.float32)
    for own, criterion, listed, queries in zip(by_task, criteria.each, lists, rows, strict=True):
        there = listed.ids[query] >= 0
        own[np.searchsorted(union, listed.ids[query][there])] = listed.distances[query][there]
        missing = np.isnan(own)
        own[missing] = _apart(session, criterion.serving, queries[query], union[missing])
    factors = np.array([c.factor for c in criteria.each])
    total = (factors @ by_task.astype(np.float64)).astype(np.float32)
    order = np.lexsort((union, total))
    order = order[~np.isnan(total[order])]
    return union[order], total[order], by_task[:, order]


def _apart(session: Session, serving: Serving, query: Rows, ids: Ids) -> Floats:
    """(n,) from the (dim,) query to these faces, by the embeddings as they are kept; NaN where one has none."""
    found = places.found(session, serving, ids.tolist())
    apart = np.full(len(ids), np.nan, np.float32)
    there = [i for i, pk in enumerate(ids.tolist()) if pk in found]
    if there:
        rows = places.rows_of([found[int(ids[i])] for i in there], serving.index.dim)
        apart[there] = serving.index.metric.distances(query[None], rows)[0]
    return apart
