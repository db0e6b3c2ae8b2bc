"""Apply the settled labels to a query: whom it cannot be, which faces it never matches, and who it is."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy.orm import Session

from app.deps.shared_schemas import SubjectRef
from app.search.enrolled_faces import ROWS_PER_BLOCK, check_immediate
from app.search.schemas import Correction, Effect
from app.serving.deployments import ServedModel
from app.serving.labels.constraints import ServedConstraints
from ml.identification.label_constraints import Exclusions, LabelledPair
from ml.indexes.base import Neighbours
from ml.types import Rows


@dataclass(frozen=True, eq=False)
class Corrections:
    """What labels change in the answer of one query. People are numbered as in `LabelConstraints`.

    ruled_out: person who is left out -> the label that says so; separated: face that is left out -> the label
    rejected: person whose match never passes -> the label that says so
    confirmed: the person of the query face, if the label `confirmed_by` says "same"
    """

    ruled_out: Mapping[int, LabelledPair] = field(default_factory=dict)
    separated: Mapping[int, LabelledPair] = field(default_factory=dict)
    rejected: Mapping[int, LabelledPair] = field(default_factory=dict)
    confirmed: int | None = None
    confirmed_by: LabelledPair | None = None


def find_corrections(
    session: Session | None, served: ServedModel, query: Rows, nearest: Mapping[int, int], query_face: int | None
) -> Corrections:
    """Find what labels change for a query. Raises DatabaseNeeded if many faces must be compared with it.

    A person is ruled out if labels say that the query face is somebody else. If they say so of another face, which is
    nearer to the query than all faces of the person, the person is rejected.

    query: (dim,) embedding; nearest: person -> pk of the nearest face; query_face: its pk if it is enrolled
    """
    served_constraints = served.deployment.constraints
    constraints = served_constraints.constraints
    confirmed, confirmed_by = served_constraints.find_confirmed(query_face)
    separated = constraints.separated.get(query_face, {}) if query_face is not None else {}
    suspects = [person for person in nearest if person in constraints.ruled_out and person != confirmed]
    if not suspects:
        return Corrections({}, separated, {}, confirmed, confirmed_by)
    exclusions = {person: constraints.ruled_out.exclusions[person] for person in suspects}
    _check_immediate(session, exclusions.values())
    groups = [group.faces for excluded in exclusions.values() for group in excluded.groups]
    labelled = {out.face for excluded in exclusions.values() for out in excluded.labelled}
    faces = labelled.union(*groups, (nearest[person] for person in suspects))
    distances = _compute_distances(served, query, sorted(faces))
    own_group = _find_own_group(groups, query_face)
    nearest_of = _find_nearest(groups, {pk: distance for pk, distance in distances.items() if pk != query_face})
    ruled_out: dict[int, LabelledPair] = {}
    rejected: dict[int, LabelledPair] = {}
    for person, (outs, excluded_groups) in exclusions.items():
        own = distances.get(nearest[person], np.inf)
        labels = [out.label for out in outs if out.face == query_face]
        labels += [group.label for group in excluded_groups if group.faces is own_group]
        if labels:
            ruled_out[person] = min(labels)
        nearer = [out.label for out in outs if out.face != query_face and distances.get(out.face, np.inf) < own]
        nearer += [group.label for group in excluded_groups if nearest_of[id(group.faces)] < own]
        if nearer:
            rejected[person] = nearer[0]
    return Corrections(ruled_out, separated, rejected, confirmed, confirmed_by)


def _check_immediate(session: Session | None, exclusions: Collection[Exclusions]) -> None:
    """Check that so many faces may be compared without a session. Raises DatabaseNeeded."""
    check_immediate(session, sum(len(excluded.labelled) + len(excluded.groups) for excluded in exclusions))
    sizes = {id(group.faces): len(group.faces) for excluded in exclusions for group in excluded.groups}
    check_immediate(session, sum(sizes.values()))


def _find_own_group(groups: Iterable[tuple[int, ...]], query_face: int | None) -> tuple[int, ...] | None:
    """Return the group of joined faces with the query face."""
    distinct = {id(faces): faces for faces in groups}
    return next((faces for faces in distinct.values() if query_face in faces), None)


def _find_nearest(groups: Iterable[tuple[int, ...]], distances: Mapping[int, float]) -> dict[int, float]:
    """Return id of the group -> the distance of its nearest face. Many people exclude one group: it is read once."""
    distinct = {id(faces): faces for faces in groups}
    return {key: min(distances.get(face, np.inf) for face in faces) for key, faces in distinct.items()}


def add_joined_faces(served: ServedModel, query: Rows, neighbours: Neighbours, query_face: int) -> Neighbours:
    """Add the faces that labels say are the same person as the query face, where the search has not found them.

    query: (1, dim); neighbours: its nearest faces
    """
    constraints = served.deployment.constraints
    person, _ = constraints.find_confirmed(query_face)
    if person is None:
        return neighbours
    missing = set(constraints.joined_faces[person]) - {query_face, *neighbours.ids[0].tolist()}
    distances = _compute_distances(served, query[0], sorted(missing))
    if not distances:
        return neighbours
    ids = np.append(neighbours.ids[0], np.array(list(distances), np.int64))
    values = np.append(neighbours.distances[0], np.array(list(distances.values()), np.float32))
    order = np.argsort(values, kind="stable")
    return Neighbours(ids[order][None], values[order][None], neighbours.fraction, neighbours.m)


def describe_correction(
    constraints: Sequence[ServedConstraints], effect: Effect, label: LabelledPair, person: int | None
) -> Correction:
    """Describe a label that changed an answer.

    constraints: of each task of the search; person: who is ruled out or joined, None if it is a single face
    """
    face_a, face_b = (
        next(served.faces[pk].face_id for served in constraints if pk in served.faces)
        for pk in (label.face_a, label.face_b)
    )
    subject = None if person is None else name_person(constraints[0], person)
    return Correction(effect=effect, same=label.same, face_a=face_a, face_b=face_b, subject=subject)


def name_person(constraints: ServedConstraints, person: int) -> SubjectRef | None:
    """Return the name of a person with a labelled face; None without a name."""
    subject = constraints.subject(person)
    return None if subject is None else SubjectRef(id=subject[0], external_id=subject[1])


def _compute_distances(served: ServedModel, query: Rows, pks: Sequence[int]) -> dict[int, float]:
    """Return pk -> distance from the (dim,) query of those faces that are in the index."""
    distances: dict[int, float] = {}
    for held, rows in served.loaded_index.iterate_rows(np.array(pks, np.int64), ROWS_PER_BLOCK):
        if len(held):
            computed = served.index.metric.distances(query[None], rows)[0]
            distances.update(zip(held.tolist(), computed.tolist(), strict=True))
    return distances
