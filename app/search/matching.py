"""Find the matches of each query: rank the nearest people, decide, and say which labels changed the answer."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from sqlalchemy.orm import Session

from app.deps.shared_schemas import SubjectRef
from app.search.candidates import Candidates, Group, QueryCandidates, find_candidates
from app.search.context import SearchContext
from app.search.corrections import describe_correction, name_person
from app.search.criteria import Criteria, MixedNeighbours, check_tasks_enabled
from app.search.decision import (
    AcceptanceThreshold,
    FaceDecision,
    PairScores,
    RankedMatch,
    decide,
    estimate_rates,
    score_faces,
    sort_matches,
)
from app.search.enrolled_faces import read_templates
from app.search.params import SearchParams
from app.search.schemas import Correction, Effect, Match
from app.serving.deployments import ServedModel
from app.serving.faces.columns import DISTRACTOR, GALLERY
from app.serving.faces.found_faces import FoundFaces
from ml.identification.label_constraints import LabelledPair
from ml.identification.searches import FACES_PER_SEARCH
from ml.identification.templates import PersonTemplate, template_distances
from ml.types import Ids, Rows

MAX_FACES_PER_MATCH = 10


class SearchHits(NamedTuple):
    """The result of a search.

    matches, decisions, corrections: of each query
    nearest: of each query, the nearest people, whether or not they pass
    faces: pk -> face, of all that the index returned and that are still enrolled
    fractions: distances computed over faces in the index, of each query; cells_probed: in each task's index
    is_complete: searching further would have changed nothing
    """

    matches: list[list[Match]]
    nearest: list[list[RankedMatch]]
    decisions: list[FaceDecision]
    corrections: list[list[Correction]]
    faces: FoundFaces
    fractions: list[float]
    cells_probed: tuple[int, ...]
    is_complete: bool


class _Search(NamedTuple):
    """What the index returned for all queries, with the meaning of its distances.

    unfiltered: what it returned without the filter; None if there is none
    hubs: owners whom no search names by itself: see `Validity`
    """

    criteria: Criteria
    candidates: Candidates
    unfiltered: Candidates | None
    scores: PairScores
    threshold: AcceptanceThreshold
    hubs: frozenset[int]


def find_matches(
    context: SearchContext,
    criteria: Criteria,
    queries: Sequence[Rows],
    params: SearchParams,
    threshold: AcceptanceThreshold,
    allowed: Ids | None,
    excluded: int | None = None,
    may_go_on: bool = True,
) -> SearchHits:
    """Find the nearest people of each query. Raises Conflict, Busy, WrongShape, NotFinite, DatabaseNeeded.

    queries: each task's (Q, dim) rows; allowed: the pks of the faces to search among, None: all
    excluded: the pk of a face that is left out; may_go_on: as `find_candidates`
    """
    session = context.session
    check_tasks_enabled(session, [c.served.task for c in criteria.tasks])
    candidates = find_candidates(context, criteria, queries, params, allowed, excluded, may_go_on)
    criteria, neighbours = candidates.criteria, candidates.neighbours
    scores = score_faces(criteria.scores, neighbours.distances.ravel())
    unfiltered = None
    if allowed is not None and threshold.kind == "fpir":
        everybody = params.model_copy(update={"limit": 1, "group_by": "subject"})
        unfiltered = find_candidates(context, criteria, queries, everybody, None, excluded, may_go_on)
    search = _Search(criteria, candidates, unfiltered, scores, threshold, criteria.first.validity.hubs)
    person_distances = _compute_person_distances(session, search, queries[0], excluded)
    nearest = list(map(partial(_rank_people, search, params), candidates.queries, person_distances))
    passing = [[match for match in ranked if match.passes] for ranked in nearest] if threshold.is_filter else nearest
    shown = [ranked[: params.limit] for ranked in passing]
    subjects = _read_subjects(search, list(chain.from_iterable(shown)))
    return SearchHits(
        matches=_build_matches(search, params, shown, subjects),
        nearest=nearest,
        decisions=list(map(partial(_decide, search, params, subjects), candidates.queries, person_distances, nearest)),
        corrections=_list_corrections(search, [ranked[: params.limit] for ranked in nearest]),
        faces=candidates.faces,
        fractions=neighbours.fraction.tolist(),
        cells_probed=neighbours.cells_probed if isinstance(neighbours, MixedNeighbours) else (neighbours.m,),
        is_complete=candidates.is_complete,
    )


def _compute_person_distances(
    session: Session | None, search: _Search, queries: Rows, excluded: int | None
) -> list[dict[int, float]]:
    """Return for each of (Q, dim) queries: person -> person distance, of its nearest people. A mix has none.

    Those whom the filter leaves out come last. They count as the next person like anybody else: the threshold was
    measured in the whole gallery, and with fewer people strangers would have a larger lead. Whom the search without the
    filter does not compare has none, so that the filter names nobody for it.
    """
    criteria, candidates, rule = search.criteria, search.candidates, search.threshold.rule
    if criteria.is_mix:
        return [{} for _ in candidates.queries]
    shortlists, distractors = _list_nearest_people(candidates), _find_distractors(search)
    if search.unfiltered is not None:
        everybody = _list_nearest_people(search.unfiltered)
        pairs = zip(shortlists, everybody, strict=True)
        shortlists = [_keep_compared(chosen, of_all, distractors) | of_all for chosen, of_all in pairs]
    templates = {}
    if rule.template_weight:
        named = dict.fromkeys([person for shortlist in shortlists for person in shortlist if not person % 2])
        templates = read_templates(session, criteria.first, list(named), excluded)
    to_templates = _compute_template_distances(criteria.first, queries, list(map(list, shortlists)), templates)
    crowds, hubs = criteria.first.deployment.constraints.crowds, search.hubs
    computed = []
    for shortlist in shortlists:
        nearest = list(shortlist.values())
        template = [next(to_templates) if person in templates else distance for person, distance in shortlist.items()]
        are_rivals = [(not person % 2 or person in distractors) and person not in hubs for person in shortlist]
        may_lead = [person not in crowds for person in shortlist]
        person_distances = rule.compute_person_distances(nearest, template, are_rivals, may_lead)
        computed.append(dict(zip(shortlist, person_distances, strict=True)))
    return computed


def _list_nearest_people(candidates: Candidates) -> list[dict[int, float]]:
    """Return for each query: person -> distance of the nearest face, of the people to compare."""
    return [
        {person: candidates.distances[of_query.offsets_of[person][0]] for person in of_query.shortlist}
        for of_query in candidates.queries
    ]


def _keep_compared(
    chosen: Mapping[int, float], of_all: Mapping[int, float], distractors: AbstractSet[int]
) -> dict[int, float]:
    """Return of the people whom a filter has chosen those of all, and the faces without a name."""
    is_kept = {person: person in of_all or (person % 2 == 1 and person not in distractors) for person in chosen}
    return {person: distance for person, distance in chosen.items() if is_kept[person]}


def _find_distractors(search: _Search) -> frozenset[int]:
    """Return the numbers of the distractors among the candidates, with those whom the filter leaves out."""
    hidden = search.unfiltered.distractors if search.unfiltered is not None else frozenset[int]()
    return search.candidates.distractors | hidden


def _compute_template_distances(
    served: ServedModel, queries: Rows, shortlists: Sequence[Sequence[int]], templates: Mapping[int, PersonTemplate]
) -> Iterator[float]:
    """Return the distances of (Q, dim) queries to the templates of the people on their shortlists that have one."""
    of_people = [[templates[person] for person in shortlist if person in templates] for shortlist in shortlists]
    rows = np.repeat(queries, list(map(len, of_people)), 0)
    distances = template_distances(served.index.metric, rows, list(chain.from_iterable(of_people)))
    return iter(distances.tolist())


def _rank_people(
    search: _Search, params: SearchParams, of_query: QueryCandidates, person_distances: Mapping[int, float]
) -> list[RankedMatch]:
    """Return the nearest groups of a query, by person distance if it is known, then by distance."""
    limit = max(params.limit, FACES_PER_SEARCH)
    if search.unfiltered is not None:
        person_distances = {p: person_distances[p] for p in of_query.shortlist if p in person_distances}
    if params.group_by == "face" or not person_distances:
        return _rank_groups(search, of_query, _list_faces(of_query, person_distances, limit), person_distances)
    order, count = sorted(person_distances, key=person_distances.__getitem__), len(person_distances)
    others = [group for group in of_query.groups if group[0] not in person_distances]
    shown = max(0, params.limit - count)
    groups = [(person, of_query.offsets_of[person]) for person in order] + others[:shown]
    ranked = _rank_groups(search, of_query, groups, person_distances)
    if search.threshold.kind == "fpir" and any(m.is_named or m.is_distractor for m in ranked[:count]):
        return ranked  # nobody farther away can pass, or has a part in the decision
    return ranked + _rank_groups(search, of_query, others[shown : max(shown, limit - count)], person_distances)


def _list_faces(of_query: QueryCandidates, people: Iterable[int], limit: int) -> list[Group]:
    """Return the nearest faces, and the nearest of each of these people, who have a part in the decision."""
    faces = of_query.groups[:limit]
    listed = {offsets[0] for _, offsets in faces}
    nearest = ((person, of_query.offsets_of[person][:1]) for person in people)
    return faces + [face for face in nearest if face[1][0] not in listed]


def _rank_groups(
    search: _Search, of_query: QueryCandidates, groups: Sequence[Group], person_distances: Mapping[int, float]
) -> list[RankedMatch]:
    """Return these groups with what the decision needs to know of them."""
    candidates, threshold, corrections = search.candidates, search.threshold, of_query.corrections
    distances, owners, distractors = candidates.distances, candidates.owners, candidates.faces.distractors
    similarity, probability = search.scores
    constraints, hubs = search.criteria.first.deployment.constraints, search.hubs
    ranked = []
    for person, offsets in groups:
        nearest = offsets[0]
        distance, person_distance = distances[nearest], person_distances.get(person)
        is_named = not owners[nearest] % 2 or name_person(constraints, person) is not None
        if person == corrections.confirmed:
            passes: bool | None = True
        elif person in corrections.rejected or (threshold.kind == "fpir" and owners[nearest] in hubs):
            passes = False
        else:
            passes = threshold.accepts(distance, similarity[nearest], person_distance, is_named)
        match = person, offsets, distance, probability[nearest], person_distance, passes, is_named
        ranked.append(RankedMatch(*match, person % 2 == 1 and nearest in distractors))
    return ranked


def _read_subjects(search: _Search, matches: Sequence[RankedMatch]) -> dict[int, SubjectRef | None]:
    """Return offset -> the name of the nearest face of each match, or of the person whom labels joined it to."""
    constraints = search.criteria.first.deployment.constraints
    offsets = [match.offsets[0] for match in matches]
    subjects = zip(offsets, matches, search.candidates.faces.read_subjects(offsets), strict=True)
    return {
        offset: name_person(constraints, match.person) if ids is None else {"id": ids[0], "external_id": ids[1]}
        for offset, match, ids in subjects
    }


def _build_matches(
    search: _Search,
    params: SearchParams,
    matches: Sequence[Sequence[RankedMatch]],
    subjects: Mapping[int, SubjectRef | None],
) -> list[list[Match]]:
    """Build what the answer says of the matches of each query."""
    candidates, (similarity, _), distances = search.candidates, search.scores, search.candidates.distances
    shows_faces = params.group_by == "subject"
    count = MAX_FACES_PER_MATCH if shows_faces else 1
    offsets = [offset for of_query in matches for match in of_query for offset in match.offsets[:count]]
    face_ids = dict(zip(offsets, candidates.faces.read_face_ids(offsets), strict=True))
    nearest = np.array([match.offsets[0] for of_query in matches for match in of_query], np.int64)
    rates = iter(estimate_rates(search.criteria.scores, candidates.neighbours.distances.ravel().take(nearest)))
    built = []
    for of_query in matches:
        listed: list[Match] = []
        for _, shown, distance, probability, person_distance, passes, _, _ in of_query:
            offset = shown[0]
            listed.append(
                {
                    "face_id": face_ids[offset],
                    "subject": subjects[offset],
                    "role": DISTRACTOR if offset in candidates.faces.distractors else GALLERY,
                    "distance": distance,
                    "similarity": similarity[offset],
                    "probability": probability,
                    "fmr_estimate": next(rates),
                    "person_distance": person_distance,
                    "passes": passes,
                }
            )
            if shows_faces:
                listed[-1]["faces"] = [
                    {"face_id": face_ids[offset], "distance": distances[offset], "similarity": similarity[offset]}
                    for offset in shown[:count]
                ]
        built.append(listed)
    if isinstance(candidates.neighbours, MixedNeighbours):
        _add_task_distances(search.criteria, candidates.neighbours, nearest, chain.from_iterable(built))
    return built


def _add_task_distances(
    criteria: Criteria, neighbours: MixedNeighbours, nearest: Ids, matches: Iterable[Match]
) -> None:
    """Add each task's distances to the matches of a mix. nearest: (n,) offsets of their faces"""
    tasks = [c.served.task for c in criteria.tasks]
    query, column = np.divmod(nearest, neighbours.ids.shape[1])
    for match, of_tasks in zip(matches, neighbours.by_task[query, :, column].tolist(), strict=True):
        match["distances"] = dict(zip(tasks, of_tasks, strict=True))


def _decide(
    search: _Search,
    params: SearchParams,
    subjects: Mapping[int, SubjectRef | None],
    of_query: QueryCandidates,
    person_distances: Mapping[int, float],
    matches: Sequence[RankedMatch],
) -> FaceDecision:
    """Decide who a face is: by labels if it is enrolled and they say so, else from the nearest people.

    People whom labels reject are passed over, and hubs. Tasks other than identity name nobody.

    subjects: offset -> the name of the person, of some matches
    """
    if not search.criteria.names_people:
        return None, None
    corrections = of_query.corrections
    if corrections.confirmed is not None:
        subject = name_person(search.criteria.first.deployment.constraints, corrections.confirmed)
        if subject is not None:
            return "match", subject
    if corrections.rejected:
        matches = [match for match in matches if match.person not in corrections.rejected]
    if search.hubs:
        matches = [match for match in matches if search.candidates.owners[match.offsets[0]] not in search.hubs]
    if params.group_by == "face":
        matches = sort_matches(matches)
    hidden = _find_hidden_distractor(search, of_query, person_distances) if search.unfiltered is not None else math.inf
    decision, decided = decide(search.threshold, matches, hidden)
    if decided is None:
        return decision, None
    offset = decided.offsets[0]
    return decision, (subjects if offset in subjects else _read_subjects(search, [decided]))[offset]


def _find_hidden_distractor(search: _Search, of_query: QueryCandidates, person_distances: Mapping[int, float]) -> float:
    """Return the person distance of the nearest distractor that the filter leaves out; infinity if there is none."""
    distractors = _find_distractors(search) - of_query.offsets_of.keys()
    return min((person_distances[person] for person in distractors & person_distances.keys()), default=math.inf)


def _list_corrections(search: _Search, matches: Sequence[Sequence[RankedMatch]]) -> list[list[Correction]]:
    """List the labels that changed the matches of each query, or left out somebody who is nearer than the last."""
    constraints = [c.served.deployment.constraints for c in search.criteria.tasks]
    if not any(constraints):
        return [[] for _ in matches]
    return [
        [describe_correction(constraints, *correction) for correction in _list_effects(search, query, of_query)]
        for query, of_query in enumerate(matches)
    ]


def _list_effects(
    search: _Search, query: int, matches: Sequence[RankedMatch]
) -> Iterator[tuple[Effect, LabelledPair, int | None]]:
    """Yield the effects of labels on a query, with whom they are about. query: its number"""
    candidates, threshold, similarity = search.candidates, search.threshold, search.scores.similarity
    corrections, width = candidates.queries[query].corrections, candidates.neighbours.ids.shape[1]
    of_query = slice(query * width, (query + 1) * width)
    faces = zip(candidates.neighbours.ids[query].tolist(), candidates.people[of_query], strict=True)
    people = {pk: person for pk, person in faces if person >= 0}
    for person in list(dict.fromkeys(people.values()))[: len(matches) + len(corrections.ruled_out)]:
        if person in corrections.ruled_out:
            yield "ruled_out", corrections.ruled_out[person], person
    for pk in people:
        if pk in corrections.separated:
            yield "ruled_out", corrections.separated[pk], None
    joined_by = search.criteria.first.deployment.constraints.constraints.joined_by
    for match in matches:
        person, offset = match.person, match.offsets[0]
        if person in corrections.rejected and (
            threshold.accepts(match.distance, similarity[offset], match.person_distance, match.is_named) is not False
        ):
            yield "rejected", corrections.rejected[person], person
        if person == corrections.confirmed and corrections.confirmed_by is not None:
            yield "joined", corrections.confirmed_by, person
        elif (owner := candidates.owners[offset]) != person and not search.criteria.is_mix:
            yield "joined", joined_by[owner], person
