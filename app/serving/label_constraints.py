"""Read the settled labels of a collection as constraints on its searches."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import not_, select
from sqlalchemy.orm import Session

from app.db.id_lists import select_ids
from app.db.tables import BUILT_IN_TASK, Collection, Face, Subject, now
from app.galleries import label_consensus
from app.galleries.retention import find_end_of_use, may_be_used
from ml.identification.label_constraints import LabelConstraints, LabelledPair

FACES_PER_QUERY = 10_000


class ConstrainedFace(NamedTuple):
    """A face with a settled label.

    subject: id and external id of its person, None without a name; end_of_use: see `find_end_of_use`
    """

    pk: int
    face_id: str
    role: str
    subject_pk: int | None
    subject: tuple[str, str | None] | None
    end_of_use: float = math.inf

    @property
    def owner(self) -> int:
        """See `LabelConstraints.from_labels`. A distractor is never named."""
        is_named = self.subject_pk is not None and self.role != "distractor"
        return 2 * self.subject_pk if self.subject_pk is not None and is_named else 2 * self.pk + 1


@dataclass(frozen=True, eq=False)
class SettledLabels:
    """What constraints are derived from.

    faces: pk -> face, of all that have a settled label
    ends_of_use: subject pk -> when the person's faces may not be used any more, of those for whom that is known
    """

    task: str = BUILT_IN_TASK
    labels: Sequence[LabelledPair] = ()
    faces: Mapping[int, ConstrainedFace] = field(default_factory=dict)
    ends_of_use: Mapping[int, float] = field(default_factory=dict)

    def list_ended(self, at: float) -> frozenset[int]:
        """Return the pks of the subjects whose faces may not be used at that time."""
        return frozenset(pk for pk, end in self.ends_of_use.items() if end <= at)


@dataclass(frozen=True, eq=False)
class ServedConstraints:
    """The constraints on the searches of a deployment, with what an answer says about them.

    Labels of faces that may not be used, by `may_be_used`, have no part in them: see `leave_out`.

    change: the collection's last change when they were read
    faces: pk -> face, of all that have a settled label
    subjects: subject pk -> id and external id of the people among them
    labels: face -> its settled labels
    joined_faces, members: person -> labelled faces and owners, of people whom labels joined
    settled: all settled labels; left_out: pks of the subjects whose labels are left out
    derived: the last constraints with others left out
    """

    change: int = -1
    constraints: LabelConstraints = field(default_factory=LabelConstraints)
    faces: Mapping[int, ConstrainedFace] = field(default_factory=dict)
    subjects: Mapping[int, tuple[str, str | None]] = field(default_factory=dict)
    joined_faces: Mapping[int, Sequence[int]] = field(default_factory=dict)
    members: Mapping[int, Sequence[int]] = field(default_factory=dict)
    labels: Mapping[int, Sequence[LabelledPair]] = field(default_factory=dict)
    settled: SettledLabels = field(default_factory=SettledLabels)
    left_out: frozenset[int] = frozenset()
    derived: dict[frozenset[int], "ServedConstraints"] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.constraints)

    def person(self, owner: int) -> int:
        """Return the number of the person, after labels have joined people."""
        return self.constraints.person(owner)

    def find_confirmed(self, pk: int | None) -> tuple[int, LabelledPair] | tuple[None, None]:
        """Return the person of a face, with the label "same" that says so; None if there is none."""
        face = self.faces.get(pk) if pk is not None else None
        label = None if face is None else self.constraints.joined_by.get(face.owner)
        return (None, None) if face is None or label is None else (self.person(face.owner), label)

    def subject(self, person: int) -> tuple[str, str | None] | None:
        """Return id and external id of a person with a labelled face; None without a name."""
        return self.subjects.get(person // 2) if person % 2 == 0 else None


def read_constraints(session: Session, collection: str, task: str, change: int) -> ServedConstraints:
    """Read the constraints that the settled labels put on searches for a task in a collection.

    Labels of identity join people and rule people out; those of another task only keep pairs from matching each other.
    A label of a face in another collection has no effect here. change: the collection's last change
    """
    consensus = label_consensus.decide_collection(session, collection, task)
    if not len(consensus):
        return ServedConstraints(change)
    columns = (consensus.pairs.tolist(), consensus.same.tolist(), consensus.weights.tolist())
    labels = [LabelledPair(a, b, same, weight) for (a, b), same, weight in zip(*columns, strict=True)]
    faces = _read_faces(session, sorted({pk for label in labels for pk in label[:2]}))
    ends = {face.subject_pk: face.end_of_use for face in faces.values() if face.subject_pk is not None}
    settled = SettledLabels(task, labels, faces, {pk: end for pk, end in ends.items() if end < math.inf})
    return _derive_constraints(settled, change, settled.list_ended(now()))


def leave_out_refused(session: Session, collection: str, constraints: ServedConstraints) -> ServedConstraints:
    """Return the constraints without the labels of people whose faces may not be used now.

    Someone may have refused consent since the constraints were read: then the subjects are read anew.
    """
    if not constraints.settled.labels:
        return constraints
    last = select(Collection.label_change).where(Collection.id == collection)
    if (session.scalar(last) or 0) <= constraints.change:
        ended = constraints.settled.list_ended(now())
    else:
        refused = select(Subject.pk).where(Subject.collection_id == collection, not_(may_be_used(now())))
        labelled = {face.subject_pk for face in constraints.settled.faces.values()}
        ended = frozenset(pk for pk in session.scalars(refused) if pk in labelled)
    return leave_out(constraints, ended)


def leave_out(constraints: ServedConstraints, subjects: frozenset[int]) -> ServedConstraints:
    """Return the constraints that the labels of all others mean. subjects: pks of the people who are left out"""
    if subjects == constraints.left_out:
        return constraints
    known = constraints.derived.get(subjects)
    if known is None or known.change != constraints.change:
        known = _derive_constraints(constraints.settled, constraints.change, subjects)
        constraints.derived.clear()
        constraints.derived[subjects] = known
    return known


def _derive_constraints(settled: SettledLabels, change: int, left_out: Set[int]) -> ServedConstraints:
    """Derive the constraints of the labels whose faces may be used. left_out: subject pks of the others"""
    faces = {pk: face for pk, face in settled.faces.items() if face.subject_pk not in left_out}
    labels = [label for label in settled.labels if label.face_a in faces and label.face_b in faces]
    if settled.task == BUILT_IN_TASK:
        constraints = LabelConstraints.from_labels(labels, {pk: face.owner for pk, face in faces.items()})
    else:
        constraints = LabelConstraints.from_separations(labels)
    joined_faces: defaultdict[int, list[int]] = defaultdict(list)
    for face in faces.values():
        if face.owner in constraints.joined_by:
            joined_faces[constraints.person(face.owner)].append(face.pk)
    members: defaultdict[int, list[int]] = defaultdict(list)
    for owner, person in constraints.joined.items():
        members[person].append(owner)
    subjects = {face.subject_pk: face.subject for face in faces.values() if face.subject_pk and face.subject}
    labels_of: defaultdict[int, list[LabelledPair]] = defaultdict(list)
    for label in labels:
        labels_of[label.face_a].append(label)
        labels_of[label.face_b].append(label)
    return ServedConstraints(
        change, constraints, faces, subjects, joined_faces, members, dict(labels_of), settled, frozenset(left_out)
    )


def _read_faces(session: Session, pks: Sequence[int]) -> dict[int, ConstrainedFace]:
    faces: dict[int, ConstrainedFace] = {}
    of_subject = (Subject.id, Subject.external_id, Subject.consent, Subject.retain_until)
    chosen = select(Face.pk, Face.face_id, Face.role, Face.subject_pk, *of_subject).outerjoin(
        Subject, Subject.pk == Face.subject_pk
    )
    for start in range(0, len(pks), FACES_PER_QUERY):
        part = select_ids(session, pks[start : start + FACES_PER_QUERY])
        for row in session.execute(chosen.where(Face.pk.in_(part))):
            subject = None if row.subject_pk is None else (row.id, row.external_id)
            end = find_end_of_use(row.consent, row.retain_until)
            faces[row.pk] = ConstrainedFace(row.pk, row.face_id, row.role, row.subject_pk, subject, end)
    return faces
