"""Search the index until there are enough people, group faces by person, and apply the labels about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy.orm import Session

from app.db.immediate import require_session
from app.search.corrections import Corrections, add_joined_faces, find_corrections
from app.search.criteria import Criteria, MixedNeighbours, search_mix
from app.search.enrolled_faces import filter_faces, read_faces
from app.search.params import SearchParams
from app.serving.deployments import SearchEffort, ServedModel
from app.serving.faces.face_table import EnrolledFace
from ml.identification.searches import FACES_PER_SEARCH
from ml.indexes import choose_operating_point
from ml.indexes.base import Neighbours
from ml.types import Rows

EXTRA_FACES, FACES_PER_PERSON = 8, 4
MAX_CANDIDATES = 65_536
MAX_MIXED_CANDIDATES = 16_384
"""The limit for each task of a mix, since stored embeddings are read for every candidate."""
NO_CORRECTIONS = Corrections()
MIN_PEOPLE = 2
"""A decision needs the nearest person and the next one."""


@dataclass(frozen=True, eq=False)
class Group:
    """The faces of one person, or a face without a name: their columns in the result of a query, nearest first.

    person: the number of the person, see `LabelConstraints`
    """

    person: int
    columns: list[int]


@dataclass(frozen=True, eq=False)
class Candidates:
    """What the index returned, less what labels rule out.

    faces: pk -> face, of all that are still enrolled; people: pk -> the number of the face's person
    groups: of each query, nearest first; corrections: of each query
    is_complete: searching further would have changed nothing
    """

    neighbours: Neighbours
    faces: dict[int, EnrolledFace]
    people: dict[int, int]
    groups: list[list[Group]]
    corrections: list[Corrections]
    is_complete: bool

    def person(self, query: int, pk: int) -> int:
        """Return the number of a face's person, -1 if the face or the person is left out for this query."""
        corrections = self.corrections[query]
        person = self.people.get(pk, -1)
        return -1 if person in corrections.ruled_out or pk in corrections.separated else person


def find_candidates(
    session: Session | None, criteria: Criteria, queries: Sequence[Rows], params: SearchParams, excluded: int | None
) -> Candidates:
    """Search for more and more faces, until there are as many people as requested.

    More faces than people are needed: a person may have many faces, and faces that were removed since the index last
    changed are dropped.

    queries: each task's (Q, dim) rows; excluded: the pk of the query face, which is left out, if it is enrolled
    """
    allowed = filter_faces(session, criteria.collection, params.filter)
    efforts = [_choose_effort(c.served, params) for c in criteria.tasks]
    total = max(c.served.face_count for c in criteria.tasks) if allowed is None else len(allowed)
    max_k = min(total, MAX_MIXED_CANDIDATES if criteria.is_mix else MAX_CANDIDATES)
    faces_per_match = FACES_PER_PERSON if params.group_by == "subject" or criteria.is_mix else 1
    k = min(max(1, total), max(params.limit * faces_per_match + EXTRA_FACES, FACES_PER_SEARCH))
    while True:
        neighbours: Neighbours
        if criteria.is_mix:
            neighbours = search_mix(require_session(session), criteria, queries, k, efforts, allowed)
        else:
            neighbours = criteria.first.search(queries[0], k, efforts[0], allowed)
            if excluded is not None and allowed is None:
                neighbours = add_joined_faces(criteria.first, queries[0], neighbours, excluded)
        candidates = _group_neighbours(session, criteria, queries, neighbours, params, excluded)
        if k >= max_k or candidates.is_complete:
            return candidates
        k = min(max_k, 4 * k)


def _choose_effort(served: ServedModel, params: SearchParams) -> SearchEffort:
    """Choose the cells to probe and the candidates: as requested, from the measured curve, or as the index does."""
    scores = served.scores
    if params.target_recall is None and params.max_latency_ms is None:
        is_exact = params.m is not None and params.m >= served.index.cells
        measured = None if is_exact or served.index.default_candidates is None else scores.candidates
        return SearchEffort(params.m, params.candidates or measured)
    if not scores.curve:
        return SearchEffort(served.index.cells if params.target_recall is not None else None)
    point = choose_operating_point(
        scores.curve, target_recall=params.target_recall, max_latency_ms=params.max_latency_ms
    )
    return SearchEffort(point.m, point.candidates)


def _group_neighbours(
    session: Session | None,
    criteria: Criteria,
    queries: Sequence[Rows],
    neighbours: Neighbours,
    params: SearchParams,
    excluded: int | None,
) -> Candidates:
    """Read the faces that the index returned, apply the labels, and group the faces of each query."""
    pks = np.unique(neighbours.ids)
    faces = read_faces(session, criteria.faces, pks[pks >= 0])
    faces.pop(excluded, None)  # type: ignore[arg-type]
    constraints = criteria.first.deployment.constraints
    people = {pk: face.owner if criteria.is_mix else constraints.person(face.owner) for pk, face in faces.items()}
    corrections = [
        _find_corrections(criteria, rows, ids, people, excluded)
        for rows, ids in zip(queries[0], neighbours.ids.tolist(), strict=True)
    ]
    candidates = Candidates(neighbours, faces, people, [], corrections, False)
    groups = [_group_faces(candidates, query, params) for query in range(len(neighbours.ids))]
    is_complete = all(_is_complete(neighbours, query, groups[query], params) for query in range(len(groups)))
    return replace(candidates, groups=groups, is_complete=is_complete)


def _find_corrections(
    criteria: Criteria, query: Rows, pks: list[int], people: Mapping[int, int], excluded: int | None
) -> Corrections:
    """Find what labels change for a query. In a mix of tasks, labels only keep pairs from matching each other."""
    if criteria.is_mix:
        served = [c.served.deployment.constraints.constraints for c in criteria.tasks]
        separated = [s.separated.get(excluded, {}) for s in served if excluded is not None]
        return Corrections(separated={face: label for labels in separated for face, label in labels.items()})
    if not criteria.first.deployment.constraints:
        return NO_CORRECTIONS
    nearest = {people[pk]: pk for pk in reversed(pks) if pk in people}
    return find_corrections(criteria.first, query, nearest, excluded)


def _group_faces(candidates: Candidates, query: int, params: SearchParams) -> list[Group]:
    """Group the faces of one query by person, or leave each by itself, in the order of their nearest faces."""
    groups: dict[int, Group] = {}
    for column, pk in enumerate(candidates.neighbours.ids[query].tolist()):
        person = candidates.person(query, pk)
        if person >= 0:
            key = person if params.group_by == "subject" else column
            groups.setdefault(key, Group(person, [])).columns.append(column)
    return list(groups.values())


def _is_complete(neighbours: Neighbours, query: int, groups: list[Group], params: SearchParams) -> bool:
    """Whether a further search would change nothing."""
    if not isinstance(neighbours, MixedNeighbours):
        return len(groups) >= max(params.limit, MIN_PEOPLE)
    bound = neighbours.bound[query]
    last = groups[params.limit - 1].columns[0] if len(groups) >= params.limit else None
    return bool(np.isinf(bound) or (last is not None and neighbours.distances[query, last] < bound))
