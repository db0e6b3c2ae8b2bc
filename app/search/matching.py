"""Find the matches of each query: rank the nearest people, decide, and say which labels changed the answer."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from sqlalchemy.orm import Session

from app.deps.shared_schemas import SubjectRef
from app.search.candidates import Candidates, Group, QueryCandidates, find_candidates
from app.search.corrections import Corrections, describe_correction, name_person
from app.search.criteria import Criteria, MixedNeighbours, check_tasks_enabled
from app.search.decision import AcceptanceThreshold, FaceDecision, PairScores, RankedMatch, decide, score_faces
from app.search.enrolled_faces import read_templates
from app.search.params import SearchParams
from app.search.schemas import Correction, Effect, Match
from app.serving.deployments import ServedModel
from app.serving.faces.columns import DISTRACTOR, GALLERY
from app.serving.faces.found_faces import FoundFaces
from ml.identification.label_constraints import LabelledPair
from ml.identification.person_distance import SHORTLIST_PEOPLE, DecisionRule
from ml.identification.searches import FACES_PER_SEARCH
from ml.identification.templates import PersonTemplate, template_distances
from ml.types import Rows

MAX_FACES_PER_MATCH = 10
Templates = Mapping[int, PersonTemplate]


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


class _Result(NamedTuple):
    """What the index returned for one query, with the meaning of its distances. query: its number"""

    criteria: Criteria
    candidates: Candidates
    query: int
    of_query: QueryCandidates
    corrections: Corrections
    scores: PairScores
    threshold: AcceptanceThreshold


def find_matches(
    session: Session | None,
    criteria: Criteria,
    queries: Sequence[Rows],
    params: SearchParams,
    threshold: AcceptanceThreshold,
    excluded: int | None = None,
    may_go_on: bool = True,
) -> SearchHits:
    """Find the nearest people of each query. Raises Conflict, Busy, WrongShape, NotFinite, DatabaseNeeded.

    queries: each task's (Q, dim) rows; excluded: the pk of a face that is left out; may_go_on: as `find_candidates`
    """
    check_tasks_enabled(session, [c.served.task for c in criteria.tasks])
    candidates = find_candidates(session, criteria, queries, params, excluded, may_go_on)
    templates = _read_templates(session, criteria, candidates, threshold.rule, excluded)
    neighbours = candidates.neighbours
    scores = score_faces(criteria.scores, neighbours.distances)
    to_templates = _compute_template_distances(criteria.first, queries[0], candidates, templates)
    matches, nearest, decisions, corrections = [], [], list[FaceDecision](), []
    for query, of_query in enumerate(candidates.queries):
        result = _Result(criteria, candidates, query, of_query, of_query.corrections, scores[query], threshold)
        person_distances = {} if criteria.is_mix else _compute_person_distances(result, to_templates[query])
        ranked = _rank_people(result, params, person_distances)
        shown = [match for match in ranked if match.passes or not threshold.is_filter][: params.limit]
        nearest.append(ranked)
        decisions.append(_decide(result, ranked))
        corrections.append(_list_corrections(result, ranked[: params.limit]))
        matches.append(_build_matches(result, shown, params))
    return SearchHits(
        matches=matches,
        nearest=nearest,
        decisions=decisions,
        corrections=corrections,
        faces=candidates.faces,
        fractions=neighbours.fraction.tolist(),
        cells_probed=neighbours.cells_probed if isinstance(neighbours, MixedNeighbours) else (neighbours.m,),
        is_complete=candidates.is_complete,
    )


def _read_templates(
    session: Session | None, criteria: Criteria, candidates: Candidates, rule: DecisionRule, excluded: int | None
) -> Templates:
    """Return the templates of the people with a name on the shortlists of all queries."""
    if criteria.is_mix or not rule.template_weight:
        return {}
    shortlists = (islice(of_query.columns_of, SHORTLIST_PEOPLE) for of_query in candidates.queries)
    named = dict.fromkeys(person for shortlist in shortlists for person in shortlist if not person % 2)
    return read_templates(session, criteria.first, list(named), excluded)


def _compute_template_distances(
    served: ServedModel, queries: Rows, candidates: Candidates, templates: Templates
) -> list[dict[int, float]]:
    """Return for each of (Q, dim) queries: person -> distance to their template, of those on its shortlist."""
    shortlists = [
        [person for person in islice(of_query.columns_of, SHORTLIST_PEOPLE) if person in templates]
        for of_query in candidates.queries
    ]
    rows = np.repeat(queries, [len(shortlist) for shortlist in shortlists], 0)
    of_people = [templates[person] for shortlist in shortlists for person in shortlist]
    distances = iter(template_distances(served.index.metric, rows, of_people).tolist())
    return [dict(zip(shortlist, distances, strict=False)) for shortlist in shortlists]


def _compute_person_distances(result: _Result, to_templates: Mapping[int, float]) -> dict[int, float]:
    """Return the nearest people of a query: person -> person distance. to_templates: person -> template distance"""
    of_query, distractors = result.of_query, result.candidates.faces.distractors
    distances, columns_of = of_query.distances, of_query.columns_of
    people = list(islice(columns_of, SHORTLIST_PEOPLE))
    nearest = [distances[columns_of[person][0]] for person in people]
    template = [to_templates.get(person, distance) for person, distance in zip(people, nearest, strict=True)]
    others = {result.candidates.people.get(pk) for pk in distractors} if distractors else ()
    are_rivals = [not person % 2 or person in others for person in people]
    person_distances = result.threshold.rule.compute_person_distances(nearest, template, are_rivals)
    return dict(zip(people, person_distances, strict=True))


def _rank_people(result: _Result, params: SearchParams, person_distances: Mapping[int, float]) -> list[RankedMatch]:
    """Return the nearest groups of a query, by person distance if it is known, then by distance."""
    of_query, limit = result.of_query, max(params.limit, FACES_PER_SEARCH)
    if params.group_by == "face" or not person_distances:
        return _rank_groups(result, of_query.groups[:limit], person_distances)
    count = len(person_distances)  # the first groups are these people
    groups = sorted(of_query.groups[:count], key=lambda group: person_distances[group[0]])
    groups += of_query.groups[count : max(params.limit, count)]
    ranked = _rank_groups(result, groups, person_distances)
    if result.threshold.kind == "fpir" and any(match.is_named or match.is_distractor for match in ranked[:count]):
        return ranked  # nobody farther away can pass, or has a part in the decision
    return ranked + _rank_groups(result, of_query.groups[len(ranked) : limit], person_distances)


def _rank_groups(result: _Result, groups: Sequence[Group], person_distances: Mapping[int, float]) -> list[RankedMatch]:
    """Return these groups with what the decision needs to know of them."""
    of_query, threshold, scores, corrections = result.of_query, result.threshold, result.scores, result.corrections
    faces, constraints = result.candidates.faces, result.criteria.first.deployment.constraints
    ranked = []
    for person, columns in groups:
        nearest = columns[0]
        pk, distance, person_distance = of_query.pks[nearest], of_query.distances[nearest], person_distances.get(person)
        if person == corrections.confirmed:
            passes: bool | None = True
        elif person in corrections.rejected:
            passes = False
        else:
            passes = threshold.accepts(distance, scores.similarity[nearest], person_distance)
        is_named = not faces.owners[pk] % 2 or name_person(constraints, person) is not None
        is_distractor, probability = pk in faces.distractors, scores.probability[nearest]
        match = person, columns, distance, probability, person_distance, passes, is_named, is_distractor
        ranked.append(RankedMatch(*match))
    return ranked


def _find_subject(result: _Result, pk: int, person: int) -> SubjectRef | None:
    """Return the name of a face, or of the person whom labels joined it to."""
    name = result.candidates.faces.find_name(pk)
    if name is not None:
        return {"id": name.id, "external_id": name.external_id}
    return name_person(result.criteria.first.deployment.constraints, person)


def _build_matches(result: _Result, matches: Sequence[RankedMatch], params: SearchParams) -> list[Match]:
    """Build what the answer says of these matches."""
    (similarity, _, fmr), faces, neighbours = result.scores, result.candidates.faces, result.candidates.neighbours
    face_ids, pks, distances = faces.face_ids, result.of_query.pks, result.of_query.distances
    shows_faces = params.group_by == "subject"
    listed = []
    for person, columns, distance, probability, person_distance, passes, _, is_distractor in matches:
        nearest = columns[0]
        pk = pks[nearest]
        built: Match = {
            "face_id": face_ids[pk],
            "subject": _find_subject(result, pk, person),
            "role": DISTRACTOR if is_distractor else GALLERY,
            "distance": distance,
            "similarity": similarity[nearest],
            "probability": probability,
            "fmr_estimate": fmr[nearest],
            "person_distance": person_distance,
            "passes": passes,
        }
        if shows_faces:
            built["faces"] = [
                {"face_id": face_ids[pks[column]], "distance": distances[column], "similarity": similarity[column]}
                for column in columns[:MAX_FACES_PER_MATCH]
            ]
        if isinstance(neighbours, MixedNeighbours):
            tasks = [c.served.task for c in result.criteria.tasks]
            of_tasks = neighbours.by_task[result.query][:, nearest].tolist()
            built["distances"] = dict(zip(tasks, of_tasks, strict=True))
        listed.append(built)
    return listed


def _decide(result: _Result, matches: Sequence[RankedMatch]) -> FaceDecision:
    """Decide who a face is: by labels if it is enrolled and they say so, else from the nearest people.

    People whom labels reject are passed over.
    """
    constraints, corrections = result.criteria.first.deployment.constraints, result.corrections
    if corrections.confirmed is not None:
        subject = name_person(constraints, corrections.confirmed)
        if subject is not None:
            return "match", subject
    if corrections.rejected:
        matches = [match for match in matches if match.person not in corrections.rejected]
    decision, decided = decide(result.threshold, matches)
    if decided is None:
        return decision, None
    return decision, _find_subject(result, result.of_query.pks[decided.columns[0]], decided.person)


def _list_corrections(result: _Result, matches: Sequence[RankedMatch]) -> list[Correction]:
    """List the labels that changed the matches of a query, or that left out somebody who is nearer than the last."""
    criteria, candidates, corrections, threshold = (
        result.criteria, result.candidates, result.corrections, result.threshold,
    )  # fmt: skip
    constraints = [c.served.deployment.constraints for c in criteria.tasks]
    if not any(constraints):
        return []
    of_query, faces = result.of_query, candidates.faces
    pks = [pk for pk in of_query.pks if pk in faces]
    nearest = list(dict.fromkeys(candidates.people[pk] for pk in pks))[: len(matches) + len(corrections.ruled_out)]
    listed: list[tuple[Effect, LabelledPair, int | None]] = [
        ("ruled_out", corrections.ruled_out[p], p) for p in nearest if p in corrections.ruled_out
    ]
    listed += [("ruled_out", corrections.separated[pk], None) for pk in pks if pk in corrections.separated]
    for match in matches:
        person, column = match.person, match.columns[0]
        owner, similarity = faces.owners[of_query.pks[column]], result.scores.similarity[column]
        if person in corrections.rejected and (
            threshold.accepts(match.distance, similarity, match.person_distance) is not False
        ):
            listed.append(("rejected", corrections.rejected[person], person))
        if person == corrections.confirmed and corrections.confirmed_by is not None:
            listed.append(("joined", corrections.confirmed_by, person))
        elif owner != person and not criteria.is_mix:
            listed.append(("joined", constraints[0].constraints.joined_by[owner], person))
    return [describe_correction(constraints, *correction) for correction in listed]
