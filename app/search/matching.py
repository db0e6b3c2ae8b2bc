"""Find the matches of each query: score the nearest people, decide, and say which labels changed the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from sqlalchemy.orm import Session

from app.deps.shared_schemas import SubjectRef
from app.search.candidates import Candidates, Group, find_candidates
from app.search.corrections import Corrections, describe_correction, name_person
from app.search.criteria import Criteria, MixedNeighbours, check_tasks_enabled
from app.search.decision import AcceptanceThreshold, FaceDecision, decide, score_faces
from app.search.enrolled_faces import read_templates
from app.search.params import SearchParams
from app.search.schemas import Correction, Effect, Match, MatchedFace, ScoreOut
from app.serving.deployments import ServedModel
from app.serving.faces.face_table import EnrolledFace
from ml.identification.label_constraints import LabelledPair
from ml.identification.person_distance import DecisionRule, shortlist
from ml.identification.searches import FACES_PER_SEARCH
from ml.identification.templates import template_distances
from ml.types import Rows

MAX_FACES_PER_MATCH = 10


class PersonMatch(NamedTuple):
    """A match with the number of its person, see `LabelConstraints`."""

    person: int
    match: Match


@dataclass(frozen=True, eq=False)
class SearchHits:
    """The result of a search.

    matches, decisions, corrections: of each query
    nearest: of each query, the nearest people, whether or not they pass
    faces: pk -> face, of all that the index returned and that are still enrolled
    fraction: distances computed over faces in the index; cells_probed: in each task's index
    is_complete: searching further would have changed nothing
    """

    matches: list[list[Match]]
    nearest: list[list[PersonMatch]]
    decisions: list[FaceDecision]
    corrections: list[list[Correction]]
    faces: dict[int, EnrolledFace]
    fraction: float
    cells_probed: tuple[int, ...]
    is_complete: bool


def find_matches(
    session: Session | None,
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
    candidates = find_candidates(session, criteria, queries, params, excluded)
    person_distances: list[dict[int, float]] = [{}] * len(candidates.groups)
    if not criteria.is_mix:
        person_distances = _compute_person_distances(
            session, criteria.first, queries[0], candidates, threshold.rule, excluded
        )
    nearest = [
        _build_matches(criteria, candidates, query, params, threshold, distances)
        for query, distances in enumerate(person_distances)
    ]
    decisions = [_decide(criteria, candidates, query, threshold, matches) for query, matches in enumerate(nearest)]
    corrections = [
        _list_corrections(criteria, candidates, query, threshold, matches[: params.limit])
        for query, matches in enumerate(nearest)
    ]
    shown = [[m.match for m in matches if m.match["passes"] or not threshold.is_filter] for matches in nearest]
    neighbours = candidates.neighbours
    return SearchHits(
        matches=[matches[: params.limit] for matches in shown],
        nearest=nearest,
        decisions=decisions,
        corrections=corrections,
        faces=candidates.faces,
        fraction=float(neighbours.fraction.mean()) if len(neighbours.fraction) else 0.0,
        cells_probed=neighbours.cells_probed if isinstance(neighbours, MixedNeighbours) else (neighbours.m,),
        is_complete=candidates.is_complete,
    )


def _compute_person_distances(
    session: Session | None,
    served: ServedModel,
    queries: Rows,
    candidates: Candidates,
    rule: DecisionRule,
    excluded: int | None,
) -> list[dict[int, float]]:
    """Return for each of (Q, dim) queries the nearest people: person -> person distance."""
    neighbours = candidates.neighbours
    numbers = [[candidates.person(q, pk) for pk in pks] for q, pks in enumerate(neighbours.ids.tolist())]
    near = shortlist(np.array(numbers, np.int64).reshape(neighbours.ids.shape), neighbours.distances)
    distractors = [candidates.people[pk] for pk, face in candidates.faces.items() if face.role == "distractor"]
    is_named = (near.people >= 0) & (near.people % 2 == 0)
    is_distractor = np.isin(near.people, distractors)
    template = near.nearest.copy()
    if rule.template_weight and is_named.any():
        templates = read_templates(session, served, np.unique(near.people[is_named]).tolist(), excluded)
        cells = [(q, c) for q, c in zip(*np.nonzero(is_named), strict=True) if int(near.people[q, c]) in templates]
        own = [templates[int(near.people[cell])] for cell in cells]
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
) -> list[PersonMatch]:
    """Return the nearest groups of a query with their scores, by person distance if it is known, then by distance."""
    neighbours, groups = candidates.neighbours, candidates.groups[query]
    if params.group_by == "subject" and person_distances:
        groups = sorted(groups, key=lambda group: person_distances.get(group.person, np.inf))
    groups = groups[: max(params.limit, FACES_PER_SEARCH)]
    columns = [column for group in groups for column in group.columns[:MAX_FACES_PER_MATCH]]
    scores = dict(zip(columns, score_faces(criteria.scores, neighbours.distances[query, columns]), strict=True))
    matches = []
    for rank, group in enumerate(groups):
        nearest = group.columns[0]
        score = scores[nearest]
        score["person_distance"] = person_distances.get(group.person)
        score["passes"] = _passes(candidates.corrections[query], group.person, threshold, score)
        face = candidates.faces[int(neighbours.ids[query, nearest])]
        match = _build_match(face, _find_subject(criteria, face, group.person), score)
        if params.group_by == "subject" and rank < params.limit:
            match["faces"] = _build_matched_faces(candidates, query, group, scores)
        if isinstance(neighbours, MixedNeighbours):
            tasks = [c.served.task for c in criteria.tasks]
            match["distances"] = dict(zip(tasks, neighbours.by_task[query][:, nearest].tolist(), strict=True))
        matches.append(PersonMatch(group.person, match))
    return matches


def _passes(corrections: Corrections, person: int, threshold: AcceptanceThreshold, score: ScoreOut) -> bool | None:
    """Whether a person passes: by labels if they say so, else by the threshold."""
    if person == corrections.confirmed:
        return True
    return False if person in corrections.rejected else threshold.accepts(score)


def _find_subject(criteria: Criteria, face: EnrolledFace, person: int) -> SubjectRef | None:
    """Return the name of a face, or of the person whom labels joined it to."""
    if face.subject is not None:
        return SubjectRef(id=face.subject, external_id=face.external_id)
    return name_person(criteria.first.deployment.constraints, person)


def _build_match(face: EnrolledFace, subject: SubjectRef | None, score: ScoreOut) -> Match:
    return cast(Match, {"face_id": face.face_id, "subject": subject, "role": face.role, **score})


def _build_matched_faces(
    candidates: Candidates, query: int, group: Group, scores: Mapping[int, ScoreOut]
) -> list[MatchedFace]:
    """Build the faces of a match. scores: column of the query's result -> scores"""
    columns = group.columns[:MAX_FACES_PER_MATCH]
    faces = (candidates.faces[pk] for pk in candidates.neighbours.ids[query, columns].tolist())
    return [
        MatchedFace(face_id=face.face_id, distance=scores[c]["distance"], similarity=scores[c]["similarity"])
        for c, face in zip(columns, faces, strict=True)
    ]


def _decide(
    criteria: Criteria,
    candidates: Candidates,
    query: int,
    threshold: AcceptanceThreshold,
    matches: Sequence[PersonMatch],
) -> FaceDecision:
    """Decide who a face is: by labels if it is enrolled and they say so, else from the nearest people.

    People whom labels reject are passed over.
    """
    corrections = candidates.corrections[query]
    if corrections.confirmed is not None:
        subject = name_person(criteria.first.deployment.constraints, corrections.confirmed)
        if subject is not None:
            return "match", subject
    return decide(threshold, [m.match for m in matches if m.person not in corrections.rejected])


def _list_corrections(
    criteria: Criteria,
    candidates: Candidates,
    query: int,
    threshold: AcceptanceThreshold,
    matches: Sequence[PersonMatch],
) -> list[Correction]:
    """List the labels that changed the matches of a query, or that left out somebody who is nearer than the last."""
    corrections = candidates.corrections[query]
    constraints = [c.served.deployment.constraints for c in criteria.tasks]
    if not any(constraints):
        return []
    pks = [pk for pk in candidates.neighbours.ids[query].tolist() if pk in candidates.faces]
    nearest = list(dict.fromkeys(candidates.people[pk] for pk in pks))[: len(matches) + len(corrections.ruled_out)]
    listed: list[tuple[Effect, LabelledPair, int | None]] = [
        ("ruled_out", corrections.ruled_out[p], p) for p in nearest if p in corrections.ruled_out
    ]
    listed += [("ruled_out", corrections.separated[pk], None) for pk in pks if pk in corrections.separated]
    owners = {face.face_id: face.owner for face in candidates.faces.values()}
    for person, match in matches:
        owner = owners[match["face_id"]]
        if person in corrections.rejected and threshold.accepts(match) is not False:
            listed.append(("rejected", corrections.rejected[person], person))
        if person == corrections.confirmed and corrections.confirmed_by is not None:
            listed.append(("joined", corrections.confirmed_by, person))
        elif owner != person and not criteria.is_mix:
            listed.append(("joined", constraints[0].constraints.joined_by[owner], person))
    return [describe_correction(constraints, *correction) for correction in listed]
