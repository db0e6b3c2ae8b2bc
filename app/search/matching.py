"""From vectors to matches: searched, named, grouped by person."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from sqlalchemy.orm import Session

from app.deps.shapes import SubjectRef
from app.search.acceptance import AcceptanceThreshold, score_faces
from app.search.asked import Asked
from app.search.criteria import Criteria, switched_on
from app.search.decision import Outcome, decide
from app.search.mixing import Mixed, nearest
from app.search.naming import Named, allowed, names
from app.search.people import person_distances
from app.search.schemas import Match, MatchedFace, Score
from app.serving.deployments import Serving
from ml.identification.searches import FACES_PER_SEARCH
from ml.indexes import choose_operating_point
from ml.indexes.base import Neighbours
from ml.types import Rows

SPARE_FACES, FACES_PER_PERSON = 8, 4
MAX_CANDIDATES, MAX_MIXED_CANDIDATES = 65_536, 16_384  # of one task; of each of a mix, whose embeddings are read again
MAX_FACES_PER_MATCH = 10
MIN_PEOPLE = 2
"""A decision compares the nearest person with the next one."""


@dataclass(frozen=True, eq=False)
class Hits:
    """matches of each query and the decision on it, and all whom the index gave that are still there; what it cost.

    ms: cells probed for each task; settled: looking further would have changed nothing
    """

    matches: list[list[Match]]
    decisions: list[Outcome]
    known: dict[int, Named]
    m: int
    fraction: float
    ms: tuple[int, ...] = ()
    settled: bool = True

    @property
    def named(self) -> dict[str, Named]:
        """By their face id."""
        return {known.face_id: known for known in self.known.values()}


@dataclass(frozen=True, eq=False)
class Group:
    """A person, or a face of nobody known, among the faces that a search found: their places, nearest first."""

    owner: int
    places: list[int]


def cells(serving: Serving, asked: Asked) -> int | None:
    """m: as named, or off the measured curve; None: the index's own."""
    if asked.target_recall is None and asked.max_latency_ms is None:
        return asked.m
    if not serving.facts.curve:
        return serving.index.cells if asked.target_recall is not None else None
    point = choose_operating_point(
        serving.facts.curve, target_recall=asked.target_recall, max_latency_ms=asked.max_latency_ms
    )
    return point.m


def match(
    session: Session,
    criteria: Criteria,
    rows: Sequence[Rows],
    asked: Asked,
    threshold: AcceptanceThreshold,
    excluded: int | None = None,
) -> Hits:
    """The nearest people of each of (Q, dim) rows (of each task's); `excluded`: a face that is not to be found.

    Faces that were removed since the index was last changed are left out; then, and where people have many faces, or a
    mix is not sure of its order yet, it looks further until there are as many as asked for.
    """
    switched_on(session, [c.serving.task for c in criteria.each])
    among = allowed(session, criteria.collection, asked.filter)
    ms = [cells(c.serving, asked) for c in criteria.each]
    total = max(len(c.serving.index) for c in criteria.each) if among is None else len(among)
    most = min(total, MAX_MIXED_CANDIDATES if criteria.mixed else MAX_CANDIDATES)
    wanted = asked.limit * (FACES_PER_PERSON if asked.group_by == "subject" or criteria.mixed else 1) + SPARE_FACES
    k = min(max(1, total), max(wanted, FACES_PER_SEARCH))
    while True:
        if criteria.mixed:
            found: Neighbours = nearest(session, criteria, rows, k, ms, among)
        else:
            found = criteria.first.search(rows[0], k, ms[0], among)
        here = np.unique(found.ids)
        known = names(session, here[here >= 0].tolist())
        known.pop(excluded, None)  # type: ignore[arg-type]
        groups = [list(_groups(ids.tolist(), known, asked)) for ids in found.ids]
        settled = all(_settled(found, i, group, asked) for i, group in enumerate(groups))
        if k >= most or settled:
            break
        k = min(most, 4 * k)
    people: list[dict[int, float]] = [{}] * len(groups)
    if not criteria.mixed:
        people = person_distances(session, criteria.first, rows[0], found, known, threshold.rule, excluded)
    candidates = [
        _candidates(found, query, group, known, criteria, asked, threshold, people[query])
        for query, group in enumerate(groups)
    ]
    decisions = [decide(threshold, nearby) for nearby in candidates]
    matches = [[m for m in nearby if m["passes"] or not threshold.is_filter][: asked.limit] for nearby in candidates]
    fraction = float(found.fraction.mean()) if len(found.fraction) else 0.0
    probed = found.ms if isinstance(found, Mixed) else (found.m,)
    return Hits(matches, decisions, known, found.m, fraction, probed, settled)


def _settled(found: Neighbours, query: int, groups: list[Group], asked: Asked) -> bool:
    """Whether looking further would change nothing."""
    if not isinstance(found, Mixed):
        return len(groups) >= max(asked.limit, MIN_PEOPLE)
    bound = found.bound[query]
    last = groups[asked.limit - 1].places[0] if len(groups) >= asked.limit else None
    return bool(np.isinf(bound) or (last is not None and found.distances[query, last] < bound))


def _groups(ids: list[int], known: dict[int, Named], asked: Asked) -> Iterator[Group]:
    """By person, or every face by itself, by their nearest face."""
    groups: dict[int, Group] = {}
    for place, pk in enumerate(ids):
        face = known.get(pk)
        if face is None:
            continue
        key = face.owner if asked.group_by == "subject" else place
        groups.setdefault(key, Group(face.owner, [])).places.append(place)
    return iter(groups.values())


def _candidates(
    found: Neighbours,
    query: int,
    groups: list[Group],
    known: dict[int, Named],
    criteria: Criteria,
    asked: Asked,
    threshold: AcceptanceThreshold,
    people: dict[int, float],
) -> list[Match]:
    """The nearest groups: by person distance where that is known, of the ten nearest people; then by distance."""
    if asked.group_by == "subject" and people:
        groups = sorted(groups, key=lambda group: people.get(group.owner, np.inf))
    groups = groups[: max(asked.limit, FACES_PER_SEARCH)]
    scores = score_faces(criteria.facts, found.distances[query, [group.places[0] for group in groups]])
    matches = []
    for rank, (group, score) in enumerate(zip(groups, scores, strict=True)):
        score["person_distance"] = people.get(group.owner)
        score["passes"] = threshold.accepts(score)
        match = _match(known[int(found.ids[query, group.places[0]])], score)
        if asked.group_by == "subject" and rank < asked.limit:
            match["faces"] = _faces(found, query, group, known, criteria)
        if isinstance(found, Mixed):
            tasks = [c.serving.task for c in criteria.each]
            match["distances"] = dict(zip(tasks, found.by_task[query][:, group.places[0]].tolist(), strict=True))
        matches.append(match)
    return matches


def _match(face: Named, score: Score) -> Match:
    subject = None if face.subject is None else SubjectRef(id=face.subject, external_id=face.external_id)
    return cast(Match, {"face_id": face.face_id, "subject": subject, "role": face.role, **score})


def _faces(
    found: Neighbours, query: int, group: Group, known: dict[int, Named], criteria: Criteria
) -> list[MatchedFace]:
    places = group.places[:MAX_FACES_PER_MATCH]
    scores = score_faces(criteria.facts, found.distances[query, places])
    faces = (known[pk] for pk in found.ids[query, places].tolist())
    return [
        MatchedFace(face_id=face.face_id, distance=score["distance"], similarity=score["similarity"])
        for face, score in zip(faces, scores, strict=True)
    ]
