"""Search the index until there are enough people, group faces by person, and apply the labels about them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy.orm import Session

from app.db.immediate import DatabaseNeeded, require_session
from app.search.corrections import Corrections, add_joined_faces, find_corrections
from app.search.criteria import Criteria, MixedNeighbours, search_mix
from app.search.enrolled_faces import filter_faces, read_faces
from app.search.params import SearchParams
from app.serving.deployments import SearchEffort, ServedModel
from app.serving.faces.found_faces import FoundFaces
from ml.identification.searches import FACES_PER_SEARCH
from ml.indexes import choose_operating_point
from ml.indexes.base import Neighbours
from ml.types import Rows

EXTRA_FACES, FACES_PER_PERSON = 8, 4
MAX_CANDIDATES = 65_536
"""The limit for all faces of a photo together."""
MAX_MIXED_CANDIDATES = 16_384
"""The limit for each task of a mix of two, since stored embeddings are read for every candidate."""
NO_CORRECTIONS = Corrections()
MIN_PEOPLE = 2
"""A decision needs the nearest person and the next one."""


Group = tuple[int, list[int]]
"""A person, or a face without a name: the number of the person, see `LabelConstraints`, and the columns of the faces in
the result of a query, nearest first."""


class QueryCandidates(NamedTuple):
    """What the index returned for one query, less what labels rule out.

    pks, distances: of each column of the result, nearest first; -1 and infinity where there is no face
    columns_of: person -> their columns, both nearest first; groups: these people or, for `group_by=face`, faces
    """

    pks: list[int]
    distances: list[float]
    columns_of: dict[int, list[int]]
    groups: list[Group]
    corrections: Corrections


class Candidates(NamedTuple):
    """What the index returned, by query.

    faces: all that are still enrolled; people: pk -> the number of the face's person
    is_complete: searching further would have changed nothing
    """

    neighbours: Neighbours
    faces: FoundFaces
    people: Mapping[int, int]
    queries: list[QueryCandidates]
    is_complete: bool


def find_candidates(
    session: Session | None,
    criteria: Criteria,
    queries: Sequence[Rows],
    params: SearchParams,
    excluded: int | None,
    may_go_on: bool = True,
) -> Candidates:
    """Search for more and more faces, until there are as many people as requested.

    More faces than people are needed: a person may have many faces, and faces that were removed since the index last
    changed are dropped.

    queries: each task's (Q, dim) rows; excluded: the pk of the query face, which is left out, if it is enrolled
    may_go_on: whether to search again for all queries if one has too few people; if not, DatabaseNeeded is raised
    """
    allowed = filter_faces(session, criteria.collection, params.filter)
    efforts = [_choose_effort(c.served, params) for c in criteria.tasks]
    total = max(c.served.face_count for c in criteria.tasks) if allowed is None else len(allowed)
    sharing = len(queries[0]) if may_go_on else 1  # searches that were put together answer as each alone
    max_k = min(total, count_candidates(len(criteria.tasks), sharing))
    faces_per_match = FACES_PER_PERSON if params.group_by == "subject" or criteria.is_mix else 1
    k = min(max(1, max_k), max(params.limit * faces_per_match + EXTRA_FACES, FACES_PER_SEARCH))
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
        if not may_go_on:
            raise DatabaseNeeded
        k = min(max_k, 4 * k)


def count_candidates(tasks: int, queries: int) -> int:
    """Return how many candidates each task may have for each query. The faces of a photo share what one has alone."""
    of_all = MAX_CANDIDATES if tasks == 1 else 2 * MAX_MIXED_CANDIDATES // tasks
    return max(of_all // max(1, queries), FACES_PER_SEARCH)


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
    """Look up the faces that the index returned, apply the labels, and group the faces of each query."""
    pks = neighbours.ids[0] if len(neighbours.ids) == 1 else np.unique(neighbours.ids)
    faces = read_faces(session, criteria.faces, pks if pks.min(initial=0) >= 0 else pks[pks >= 0])
    if excluded is not None:
        faces.discard(excluded)
    people = _find_people(criteria, faces)
    grouped = [
        _group_faces(criteria, rows, of_query.tolist(), distances.tolist(), people, params, excluded)
        for rows, of_query, distances in zip(queries[0], neighbours.ids, neighbours.distances, strict=True)
    ]
    is_complete = all(
        _is_complete(neighbours, query, of_query.groups, params) for query, of_query in enumerate(grouped)
    )
    return Candidates(neighbours, faces, people, grouped, is_complete)


def _find_people(criteria: Criteria, faces: FoundFaces) -> Mapping[int, int]:
    """Return pk -> the number of the face's person."""
    constraints = criteria.first.deployment.constraints
    if criteria.is_mix or not constraints:
        return faces.owners
    return {pk: constraints.person(owner) for pk, owner in faces.owners.items()}


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


def _group_faces(
    criteria: Criteria,
    query: Rows,
    pks: list[int],
    distances: list[float],
    people: Mapping[int, int],
    params: SearchParams,
    excluded: int | None,
) -> QueryCandidates:
    """Group the faces of one query, (dim,), by person, or leave each by itself, in the order of their nearest faces."""
    corrections = _find_corrections(criteria, query, pks, people, excluded)
    columns_of: dict[int, list[int]] = {}
    is_corrected = corrections is not NO_CORRECTIONS
    for column, pk in enumerate(pks):
        person = people.get(pk)
        if person is None or (is_corrected and (person in corrections.ruled_out or pk in corrections.separated)):
            continue
        if person in columns_of:
            columns_of[person].append(column)
        else:
            columns_of[person] = [column]
    if params.group_by == "subject":
        groups = list(columns_of.items())
    else:
        faces = sorted((column, person) for person, columns in columns_of.items() for column in columns)
        groups = [(person, [column]) for column, person in faces]
    return QueryCandidates(pks, distances, columns_of, groups, corrections)


def _is_complete(neighbours: Neighbours, query: int, groups: list[Group], params: SearchParams) -> bool:
    """Whether a further search would change nothing."""
    if not isinstance(neighbours, MixedNeighbours):
        return len(groups) >= max(params.limit, MIN_PEOPLE)
    bound = neighbours.bound[query]
    last = groups[params.limit - 1][1][0] if len(groups) >= params.limit else None
    return bool(np.isinf(bound) or (last is not None and neighbours.distances[query, last] < bound))
