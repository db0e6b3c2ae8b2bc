"""Search the index until there are enough people, group faces by person, and apply the labels about them."""

import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from sqlalchemy.orm import Session

from app.db.immediate import DatabaseNeeded, require_session
from app.search.context import SearchContext
from app.search.corrections import Corrections, add_joined_faces, find_corrections
from app.search.criteria import Criteria, MixedNeighbours, choose_effort, search_mix
from app.search.enrolled_faces import read_faces
from app.search.params import SearchParams
from app.serving.faces.found_faces import FoundFaces
from ml.identification.person_distance import SHORTLIST_PEOPLE
from ml.identification.searches import FACES_PER_SEARCH, MAX_FACES_PER_SEARCH, MAX_RIVAL_DEPTH
from ml.indexes.base import Neighbours
from ml.types import Ids, Rows

EXTRA_FACES, FACES_PER_PERSON = 8, 4
MAX_CANDIDATES = MAX_FACES_PER_SEARCH
"""The limit for all faces of a photo together."""
MAX_MIXED_CANDIDATES = 16_384
"""The limit for each task of a mix of two, since stored embeddings are read for every candidate."""
MAX_SEARCH_SECONDS = 0.01
"""A search that takes longer, as one that waits for its turn, looks up afterwards who is known by then."""
NO_CORRECTIONS = Corrections()

Group = tuple[int, list[int]]
"""A person, or a face without a name: the number of the person, see `LabelConstraints`, and the offsets of the faces in
the result of the search, nearest first."""


class QueryCandidates(NamedTuple):
    """What the index returned for one query, less what labels rule out.

    offsets_of: person -> the offsets of their faces, both nearest first
    groups: these people or, for `group_by=face`, faces
    shortlist: the people to compare: the nearest, and the nearest who may be the next person. However far a search
        looks, these are the same
    is_shortlist_full: whether so many of these may be the next person that others have no part in the decision
    """

    offsets_of: Mapping[int, list[int]]
    groups: list[Group]
    corrections: Corrections
    shortlist: list[int]
    is_shortlist_full: bool


class Candidates(NamedTuple):
    """What the index returned, with the faces of all queries in one list: those of query q from offset q x k on.

    criteria: the models, with what was known of people when their faces were looked up
    distances: at each offset, infinity where there is no face; faces: all that are still enrolled, by their offsets
    owners, people: at each offset, the number of the face's owner and that of their person, -1 where there is no face
    distractors: distractors that were returned, but for those whom labels joined to somebody with a name
    is_complete: searching further would have changed nothing
    """

    criteria: Criteria
    neighbours: Neighbours
    distances: list[float]
    faces: FoundFaces
    owners: list[int]
    people: list[int]
    distractors: frozenset[int]
    queries: list[QueryCandidates]
    is_complete: bool


def find_candidates(
    context: SearchContext,
    criteria: Criteria,
    queries: Sequence[Rows],
    params: SearchParams,
    allowed: Ids | None,
    excluded: int | None,
    may_go_on: bool = True,
) -> Candidates:
    """Search for more and more faces, until there are as many people as requested.

    More faces than people are needed: a person may have many faces, and faces that were removed since the index last
    changed are dropped.

    queries: each task's (Q, dim) rows; allowed: the pks of the faces to search among, None: all
    excluded: the pk of the query face, which is left out, if it is enrolled
    may_go_on: whether to search again for all queries if one has too few people; if not, DatabaseNeeded is raised
    """
    efforts = [choose_effort(c.served, params) for c in criteria.tasks]
    total = max(c.served.face_count for c in criteria.tasks) if allowed is None else len(allowed)
    sharing = len(queries[0]) if may_go_on else 1  # searches that were put together answer as each alone
    max_k = min(total, count_candidates(len(criteria.tasks), sharing))
    faces_per_match = FACES_PER_PERSON if params.group_by == "subject" or criteria.is_mix else 1
    k = min(max(1, max_k), max(params.limit * faces_per_match + EXTRA_FACES, FACES_PER_SEARCH))
    while True:
        neighbours: Neighbours
        started = time.monotonic()
        if criteria.is_mix:
            neighbours = search_mix(require_session(context.session), criteria, queries, k, efforts, allowed)
        else:
            neighbours = criteria.first.search(queries[0], k, efforts[0], allowed)
            if excluded is not None and allowed is None:
                neighbours = add_joined_faces(criteria.first, queries[0], neighbours, excluded)
        if time.monotonic() - started > MAX_SEARCH_SECONDS:
            criteria = context.renew_all(criteria)
        candidates = _group_neighbours(context.session, criteria, queries, neighbours, params, excluded)
        if k >= max_k or candidates.is_complete:
            return candidates
        if not may_go_on:
            raise DatabaseNeeded
        k = min(max_k, 4 * k)


def count_candidates(tasks: int, queries: int) -> int:
    """Return how many candidates each task may have for each query. The faces of a photo share what one has alone."""
    of_all = MAX_CANDIDATES if tasks == 1 else 2 * MAX_MIXED_CANDIDATES // tasks
    return max(of_all // max(1, queries), FACES_PER_SEARCH)


def _group_neighbours(
    session: Session | None,
    criteria: Criteria,
    queries: Sequence[Rows],
    neighbours: Neighbours,
    params: SearchParams,
    excluded: int | None,
) -> Candidates:
    """Look up the faces that the index returned, apply the labels, and group the faces of each query."""
    pks = neighbours.ids.ravel()
    faces = read_faces(session, criteria.faces, pks if excluded is None else np.where(pks == excluded, -1, pks))
    owners = faces.owners.tolist()
    people = _find_people(criteria, owners)
    corrections = _find_corrections(session, criteria, queries[0], neighbours.ids, people, excluded)
    distractors = frozenset([people[offset] for offset in faces.distractors if people[offset] % 2])
    width = neighbours.ids.shape[1]
    grouped = []
    for query, of_query in enumerate(corrections):
        start, end = query * width, (query + 1) * width
        kept = people[start:end]
        if of_query is not NO_CORRECTIONS:
            kept = _leave_out(of_query, neighbours.ids[query], kept)
        grouped.append(_group_faces(start, kept, of_query, params, distractors))
    depth = 0 if criteria.faces is not None and not criteria.faces.has_rivals else MAX_RIVAL_DEPTH
    is_complete = all(
        _is_complete(neighbours, query, of_query, params, depth) for query, of_query in enumerate(grouped)
    )
    distances = neighbours.distances.ravel().tolist()
    return Candidates(criteria, neighbours, distances, faces, owners, people, distractors, grouped, is_complete)


def _find_people(criteria: Criteria, owners: list[int]) -> list[int]:
    """Return the numbers of the people that labels have made of these owners."""
    constraints = criteria.first.deployment.constraints
    return owners if criteria.is_mix or not constraints else list(map(constraints.person, owners))


def _find_corrections(
    session: Session | None,
    criteria: Criteria,
    queries: Rows,
    ids: Ids,
    people: Sequence[int],
    excluded: int | None,
) -> list[Corrections]:
    """Find what labels change for each of (Q, dim) queries. In a mix, labels only keep pairs from matching each other.

    ids: (Q, k) faces that the index returned; people: of these Q x k faces
    """
    if criteria.is_mix:
        served = [c.served.deployment.constraints.constraints for c in criteria.tasks]
        separated = [s.separated.get(excluded, {}) for s in served if excluded is not None]
        in_mix = Corrections(separated={face: label for labels in separated for face, label in labels.items()})
        return [in_mix] * len(ids)
    if not criteria.first.deployment.constraints:
        return [NO_CORRECTIONS] * len(ids)
    faces = list(zip(people, ids.ravel().tolist(), strict=True))
    width, corrections = ids.shape[1], []
    for query, row in enumerate(queries):
        nearest = reversed(faces[query * width : (query + 1) * width])
        of_query = {person: pk for person, pk in nearest if person >= 0}
        corrections.append(find_corrections(session, criteria.first, row, of_query, excluded))
    return corrections


def _leave_out(corrections: Corrections, pks: Ids, people: Sequence[int]) -> list[int]:
    """Return the people of the faces in a result, -1 for whom labels leave out."""
    ruled_out, separated = corrections.ruled_out, corrections.separated
    faces = zip(people, pks.tolist(), strict=True)
    return [-1 if person in ruled_out or pk in separated else person for person, pk in faces]


def _group_faces(
    start: int, people: Sequence[int], corrections: Corrections, params: SearchParams, distractors: frozenset[int]
) -> QueryCandidates:
    """Group the faces of one query by person, or leave each by itself, in the order of their nearest faces.

    start: the offset of its first face; people: of its faces, -1 for those that are left out
    """
    offsets_of: dict[int, list[int]] = {}
    for offset, person in enumerate(people, start):
        if person in offsets_of:
            offsets_of[person].append(offset)
        else:
            offsets_of[person] = [offset]
    offsets_of.pop(-1, None)
    if params.group_by == "subject":
        groups = list(offsets_of.items())
    else:
        groups = [(person, [offset]) for offset, person in enumerate(people, start) if person >= 0]
    compared = _choose_people(offsets_of, start + MAX_RIVAL_DEPTH, distractors)
    return QueryCandidates(offsets_of, groups, corrections, *compared)


def _choose_people(
    people: Mapping[int, Sequence[int]], end: int, distractors: frozenset[int]
) -> tuple[list[int], bool]:
    """Return the shortlist of these people, nearest first, and whether it is full.

    Faces without a name are not the next person. They take no place of somebody who may be.

    people: the offsets of their faces, both nearest first; end: from this offset on only the nearest people count
    """
    nearest = list(islice(people, SHORTLIST_PEOPLE))
    within = [person for person, offsets in people.items() if offsets[0] < end]
    rivals = [p for p in max(nearest, within, key=len) if p % 2 == 0 or p in distractors][:SHORTLIST_PEOPLE]
    is_full = len(rivals) == SHORTLIST_PEOPLE
    return (rivals if rivals == nearest else nearest + [person for person in rivals if person not in nearest]), is_full


def _is_complete(
    neighbours: Neighbours, query: int, of_query: QueryCandidates, params: SearchParams, rival_depth: int
) -> bool:
    """Whether a further search would change nothing: neither the matches nor who is compared for the decision.

    rival_depth: among how many faces to look for people to compare
    """
    groups = of_query.groups
    if not isinstance(neighbours, MixedNeighbours):
        is_deep = of_query.is_shortlist_full or neighbours.ids.shape[1] >= rival_depth
        if len(groups) >= params.limit and len(of_query.offsets_of) >= SHORTLIST_PEOPLE and is_deep:
            return True
        return bool(neighbours.ids[query, -1] < 0)  # the probed cells have no more
    bound = neighbours.bound[query]
    last = groups[params.limit - 1][1][0] if len(groups) >= params.limit else None
    return bool(np.isinf(bound) or (last is not None and neighbours.distances.flat[last] < bound))
