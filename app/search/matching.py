"""Find the matches of each query: search the index until there are enough people, group faces by person, and decide."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from sqlalchemy.orm import Session

from app.deps.shared_schemas import SubjectRef
from app.search.criteria import Criteria, MixedNeighbours, check_tasks_enabled, search_mix
from app.search.decision import AcceptanceThreshold, FaceDecision, decide, score_faces
from app.search.enrolled_faces import EnrolledFace, filter_faces, read_faces, read_templates
from app.search.params import SearchParams
from app.search.schemas import Match, MatchedFace, ScoreOut
from app.serving.deployments import ServedModel
from ml.identification.person_distance import DecisionRule, shortlist
from ml.identification.searches import FACES_PER_SEARCH
from ml.identification.templates import template_distances
from ml.indexes import choose_operating_point
from ml.indexes.base import Neighbours
from ml.types import Rows

EXTRA_FACES, FACES_PER_PERSON = 8, 4
MAX_CANDIDATES = 65_536
MAX_MIXED_CANDIDATES = 16_384
"""The limit for each task of a mix, since stored embeddings are read for every candidate."""
MAX_FACES_PER_MATCH = 10
MIN_PEOPLE = 2
"""A decision needs the nearest person and the next one."""


@dataclass(frozen=True, eq=False)
class SearchHits:
    """The result of a search.

    matches, decisions: of each query; faces: pk -> face, of all that the index returned and that are still enrolled
    fraction: distances computed over faces in the index; cells_probed: in each task's index
    is_complete: searching further would have changed nothing
    """

    matches: list[list[Match]]
    decisions: list[FaceDecision]
    faces: dict[int, EnrolledFace]
    fraction: float
    cells_probed: tuple[int, ...]
    is_complete: bool

    @property
    def faces_by_id(self) -> dict[str, EnrolledFace]:
        return {face.face_id: face for face in self.faces.values()}


@dataclass(frozen=True, eq=False)
class Group:
    """The faces of one person, or a face without a name: their columns in the result of a query, nearest first."""

    owner: int
    columns: list[int]


@dataclass(frozen=True, eq=False)
class Candidates:
    """What the index returned. groups: of each query, nearest first; faces, is_complete: see SearchHits"""

    neighbours: Neighbours
    faces: dict[int, EnrolledFace]
    groups: list[list[Group]]
    is_complete: bool


def find_matches(
    session: Session,
    criteria: Criteria,
    queries: Sequence[Rows],
    params: SearchParams,
    threshold: AcceptanceThreshold,
    excluded: int | None = None,
) -> SearchHits:
    """Find the nearest people of each query. Raises Conflict, Busy, WrongShape, NotFinite.

    queries: each task's (Q, dim) rows; excluded: the pk of a face that is left out
    """
    check_tasks_enabled(session, [c.served.task for c in criteria.tasks])
    candidates = _search_until_enough(session, criteria, queries, params, excluded)
    person_distances: list[dict[int, float]] = [{}] * len(candidates.groups)
    if not criteria.is_mix:
        person_distances = _compute_person_distances(
            session, criteria.first, queries[0], candidates, threshold.rule, excluded
        )
    nearest = [
        _build_matches(criteria, candidates, query, params, threshold, distances)
        for query, distances in enumerate(person_distances)
    ]
    shown = [[m for m in matches if m["passes"] or not threshold.is_filter] for matches in nearest]
    neighbours = candidates.neighbours
    return SearchHits(
        matches=[matches[: params.limit] for matches in shown],
        decisions=[decide(threshold, matches) for matches in nearest],
        faces=candidates.faces,
        fraction=float(neighbours.fraction.mean()) if len(neighbours.fraction) else 0.0,
        cells_probed=neighbours.cells_probed if isinstance(neighbours, MixedNeighbours) else (neighbours.m,),
        is_complete=candidates.is_complete,
    )


def _search_until_enough(
    session: Session, criteria: Criteria, queries: Sequence[Rows], params: SearchParams, excluded: int | None
) -> Candidates:
    """Search for more and more faces, until there are as many people as requested.

    More faces than people are needed: a person may have many faces, and faces that were removed since the index last
    changed are dropped.
    """
    allowed = filter_faces(session, criteria.collection, params.filter)
    cell_counts = [_choose_cell_count(c.served, params) for c in criteria.tasks]
    total = max(len(c.served.index) for c in criteria.tasks) if allowed is None else len(allowed)
    max_k = min(total, MAX_MIXED_CANDIDATES if criteria.is_mix else MAX_CANDIDATES)
    faces_per_match = FACES_PER_PERSON if params.group_by == "subject" or criteria.is_mix else 1
    k = min(max(1, total), max(params.limit * faces_per_match + EXTRA_FACES, FACES_PER_SEARCH))
    while True:
        neighbours: Neighbours
        if criteria.is_mix:
            neighbours = search_mix(session, criteria, queries, k, cell_counts, allowed)
        else:
            neighbours = criteria.first.search(queries[0], k, cell_counts[0], allowed)
        pks = np.unique(neighbours.ids)
        faces = read_faces(session, pks[pks >= 0].tolist())
        faces.pop(excluded, None)  # type: ignore[arg-type]
        groups = [_group_faces(ids.tolist(), faces, params) for ids in neighbours.ids]
        is_complete = all(_is_complete(neighbours, query, groups[query], params) for query in range(len(groups)))
        if k >= max_k or is_complete:
            return Candidates(neighbours, faces, groups, is_complete)
        k = min(max_k, 4 * k)


def _choose_cell_count(served: ServedModel, params: SearchParams) -> int | None:
    """Return the number of cells to probe: as requested, or from the measured curve. None means the index's default."""
    if params.target_recall is None and params.max_latency_ms is None:
        return params.m
    if not served.scores.curve:
        return served.index.cells if params.target_recall is not None else None
    point = choose_operating_point(
        served.scores.curve, target_recall=params.target_recall, max_latency_ms=params.max_latency_ms
    )
    return point.m


def _group_faces(pks: list[int], faces: Mapping[int, EnrolledFace], params: SearchParams) -> list[Group]:
    """Group the faces of one query by person, or leave each by itself, in the order of their nearest faces."""
    groups: dict[int, Group] = {}
    for column, pk in enumerate(pks):
        face = faces.get(pk)
        if face is not None:
            key = face.owner if params.group_by == "subject" else column
            groups.setdefault(key, Group(face.owner, [])).columns.append(column)
    return list(groups.values())


def _is_complete(neighbours: Neighbours, query: int, groups: list[Group], params: SearchParams) -> bool:
    """Whether a further search would change nothing."""
    if not isinstance(neighbours, MixedNeighbours):
        return len(groups) >= max(params.limit, MIN_PEOPLE)
    bound = neighbours.bound[query]
    last = groups[params.limit - 1].columns[0] if len(groups) >= params.limit else None
    return bool(np.isinf(bound) or (last is not None and neighbours.distances[query, last] < bound))


def _compute_person_distances(
    session: Session,
    served: ServedModel,
    queries: Rows,
    candidates: Candidates,
    rule: DecisionRule,
    excluded: int | None,
) -> list[dict[int, float]]:
    """Return for each of (Q, dim) queries the nearest people: owner (see `EnrolledFace.owner`) -> person distance."""
    faces, neighbours = candidates.faces, candidates.neighbours
    owners = [[faces[pk].owner if pk in faces else -1 for pk in pks] for pks in neighbours.ids.tolist()]
    near = shortlist(np.array(owners, np.int64).reshape(neighbours.ids.shape), neighbours.distances)
    by_owner = {face.owner: face for face in faces.values()}
    is_named = np.array([[p >= 0 and by_owner[p].is_named for p in row] for row in near.people.tolist()], np.bool_)
    is_distractor = np.array(
        [[p >= 0 and by_owner[p].role == "distractor" for p in row] for row in near.people.tolist()], np.bool_
    )
    template = near.nearest.copy()
    if rule.template_weight and is_named.any():
        subjects = sorted({int(p) // 2 for p in near.people[is_named]})
        templates = read_templates(session, served.loaded_index, subjects, excluded)
        cells = [(q, c) for q, c in zip(*np.nonzero(is_named), strict=True) if int(near.people[q, c]) // 2 in templates]
        own = [templates[int(near.people[cell]) // 2] for cell in cells]
        rows = queries[[query for query, _ in cells]]
        for cell, distance in zip(cells, template_distances(served.index.metric, rows, own), strict=True):
            template[cell] = distance
    distances = rule.person_distances(rule.base_distances(near.nearest, template), is_named | is_distractor)
    return [
        {int(person): float(d) for person, d in zip(people, of_query, strict=True) if person >= 0}
        for people, of_query in zip(near.people, distances, strict=True)
    ]


def _build_matches(
    criteria: Criteria,
    candidates: Candidates,
    query: int,
    params: SearchParams,
    threshold: AcceptanceThreshold,
    person_distances: Mapping[int, float],
) -> list[Match]:
    """Return the nearest groups of a query with their scores, by person distance if it is known, then by distance."""
    neighbours, groups = candidates.neighbours, candidates.groups[query]
    if params.group_by == "subject" and person_distances:
        groups = sorted(groups, key=lambda group: person_distances.get(group.owner, np.inf))
    groups = groups[: max(params.limit, FACES_PER_SEARCH)]
    scores = score_faces(criteria.scores, neighbours.distances[query, [group.columns[0] for group in groups]])
    matches = []
    for rank, (group, score) in enumerate(zip(groups, scores, strict=True)):
        nearest = group.columns[0]
        score["person_distance"] = person_distances.get(group.owner)
        score["passes"] = threshold.accepts(score)
        match = _build_match(candidates.faces[int(neighbours.ids[query, nearest])], score)
        if params.group_by == "subject" and rank < params.limit:
            match["faces"] = _build_matched_faces(criteria, candidates, query, group)
        if isinstance(neighbours, MixedNeighbours):
            tasks = [c.served.task for c in criteria.tasks]
            match["distances"] = dict(zip(tasks, neighbours.by_task[query][:, nearest].tolist(), strict=True))
        matches.append(match)
    return matches


def _build_match(face: EnrolledFace, score: ScoreOut) -> Match:
    subject = None if face.subject is None else SubjectRef(id=face.subject, external_id=face.external_id)
    return cast(Match, {"face_id": face.face_id, "subject": subject, "role": face.role, **score})


def _build_matched_faces(criteria: Criteria, candidates: Candidates, query: int, group: Group) -> list[MatchedFace]:
    columns = group.columns[:MAX_FACES_PER_MATCH]
    scores = score_faces(criteria.scores, candidates.neighbours.distances[query, columns])
    faces = (candidates.faces[pk] for pk in candidates.neighbours.ids[query, columns].tolist())
    return [
        MatchedFace(face_id=face.face_id, distance=score["distance"], similarity=score["similarity"])
        for face, score in zip(faces, scores, strict=True)
    ]
