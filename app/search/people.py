"""How near a search comes to each person on its shortlist."""

from collections.abc import Mapping, Sequence

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Face
from app.search.naming import Named
from app.serving.deployments import Serving
from app.serving.loaded_index import Held
from ml.errors import WrongShape
from ml.identification.decision_rule import DecisionRule, shortlist
from ml.identification.templates import PersonTemplate, template_distances
from ml.indexes.base import Neighbours
from ml.types import Ids, Rows

MAX_CACHED_BYTES = 64 * 2**20


def person_distances(
    session: Session,
    serving: Serving,
    queries: Rows,
    found: Neighbours,
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
    named = np.array([[p >= 0 and kinds[p].is_named for p in row] for row in near.people.tolist()], np.bool_)
    distractor = np.array(
        [[p >= 0 and kinds[p].role == "distractor" for p in row] for row in near.people.tolist()], np.bool_
    )
    template = near.nearest.copy()
    if rule.template_weight and named.any():
        known_people = _templates(session, serving.held, sorted({int(p) // 2 for p in near.people[named]}), excluded)
        there = [(q, p) for q, p in zip(*np.nonzero(named), strict=True) if int(near.people[q, p]) // 2 in known_people]
        own = [known_people[int(near.people[q, p]) // 2] for q, p in there]
        rows = queries[[q for q, _ in there]]
        for (query, place), distance in zip(there, template_distances(serving.index.metric, rows, own), strict=True):
            template[query, place] = distance
    scored = rule.person_distances(rule.base_distances(near.nearest, template), named | distractor)
    return [
        {int(p): float(d) for p, d in zip(people, distances, strict=True) if p >= 0}
        for people, distances in zip(near.people, scored, strict=True)
    ]


def _templates(
    session: Session, held: Held, subjects: Sequence[int], excluded: int | None
) -> dict[int, PersonTemplate]:
    """subject pk -> the template of its gallery faces that the index holds."""
    cached = held.person_templates
    missing = [s for s in subjects if s not in cached or excluded is not None]
    chosen = select(Face.subject_pk, Face.pk).where(Face.subject_pk.in_(missing), Face.role != "distractor")
    faces: dict[int, list[int]] = {}
    for subject, pk in session.execute(chosen) if missing else ():
        if pk != excluded and subject is not None:
            faces.setdefault(subject, []).append(pk)
    templates = {s: cached[s] for s in subjects if s not in missing}
    rows = _rows_held(held, np.array([pk for pks in faces.values() for pk in pks], np.int64))
    for subject, pks in faces.items():
        own = [rows[pk] for pk in pks if pk in rows]
        if own:
            templates[subject] = PersonTemplate.from_rows(np.stack(own))
    if excluded is None:
        if len(cached) * 8 * held.dim > MAX_CACHED_BYTES:
            cached = held.person_templates = {}
        cached.update(templates)
    return templates


def _rows_held(held: Held, pks: Ids) -> dict[int, Rows]:
    """pk -> (dim,) of those that the index holds; one may have come or gone since the tables were read."""
    with held.lock.shared():
        try:
            rows = held.index.rows(pks)
        except WrongShape:
            pks = pks[np.isin(pks, held.index.ids())]
            rows = held.index.rows(pks)
    return dict(zip(pks.tolist(), rows, strict=True))
