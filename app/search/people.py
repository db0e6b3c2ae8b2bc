"""How near a search comes to each person on its shortlist."""

from collections.abc import Mapping, Sequence

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Face
from app.engine.held import Held
from app.engine.served import Serving
from app.search.naming import Named
from ml.errors import WrongShape
from ml.identification.decision_rule import DecisionRule, shortlist
from ml.indexes.base import Found
from ml.types import Ids, Rows

MAX_CACHED_BYTES = 64 * 2**20


def person_distances(
    session: Session,
    serving: Serving,
    queries: Rows,
    found: Found,
    known: Mapping[int, Named],
    rule: DecisionRule,
    excluded: int | None = None,
) -> list[dict[int, float]]:
    """Of each of (Q, dim) queries: owner (see `Named.owner`) -> person distance, for the nearest people.

    excluded: the pk of a face that searches for itself, and does not count among its person's
    """
    owners = np.array([[known[pk].owner if pk in known else -1 for pk in row] for row in found.ids.tolist()], np.int64)
    near = shortlist(owners.reshape(found.ids.shape), found.distances)
    kinds = {face.owner: face for face in known.values()}
    there = near.people >= 0
    named = np.array([[p >= 0 and kinds[p].is_named for p in row] for row in near.people.tolist()], np.bool_)
    distractor = np.array(
        [[p >= 0 and kinds[p].role == "distractor" for p in row] for row in near.people.tolist()], np.bool_
    )
    template = near.nearest.copy()
    if rule.template_weight and named.any():
        subjects = sorted({int(p) // 2 for p in near.people[named]})
        means = _mean_rows(session, serving.held, subjects, excluded)
        metric = serving.index.metric
        for query, place in zip(*np.nonzero(named), strict=True):
            mean = means.get(int(near.people[query, place]) // 2)
            if mean is not None:
                template[query, place] = float(metric.paired(queries[query : query + 1], mean[None])[0])
    scored = rule.person_distances(rule.base_distances(near.nearest, template), (named | distractor) & there)
    return [
        {int(p): float(d) for p, d in zip(people, distances, strict=True) if p >= 0}
        for people, distances in zip(near.people, scored, strict=True)
    ]


def _mean_rows(session: Session, held: Held, subjects: Sequence[int], excluded: int | None) -> dict[int, Rows]:
    """subject pk -> (dim,) mean of its gallery faces that the index holds."""
    cached = held.person_means
    missing = [s for s in subjects if s not in cached or excluded is not None]
    chosen = select(Face.subject_pk, Face.pk).where(Face.subject_pk.in_(missing), Face.role != "distractor")
    faces: dict[int, list[int]] = {}
    for subject, pk in session.execute(chosen) if missing else ():
        if pk != excluded and subject is not None:
            faces.setdefault(subject, []).append(pk)
    means = {s: cached[s] for s in subjects if s not in missing}
    rows = _rows_held(held, np.array([pk for pks in faces.values() for pk in pks], np.int64))
    for subject, pks in faces.items():
        own = [rows[pk] for pk in pks if pk in rows]
        if own:
            means[subject] = np.mean(own, axis=0, dtype=np.float32)
    if excluded is None:
        if len(cached) * 4 * held.dim > MAX_CACHED_BYTES:
            cached = held.person_means = {}
        cached.update(means)
    return means


def _rows_held(held: Held, pks: Ids) -> dict[int, Rows]:
    """pk -> (dim,) of those that the index holds; one may have come or gone since the tables were read."""
    with held.lock.shared():
        try:
            rows = held.index.rows(pks)
        except WrongShape:
            pks = pks[np.isin(pks, held.index.ids())]
            rows = held.index.rows(pks)
    return dict(zip(pks.tolist(), rows, strict=True))
