"""Read the settled labels of a collection as constraints on its searches."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import BUILT_IN_TASK, Face, Subject
from app.galleries import label_consensus
from ml.identification.label_constraints import LabelConstraints, LabelledPair

FACES_PER_QUERY = 10_000


class ConstrainedFace(NamedTuple):
    """A face with a settled label. subject: id and external id of its person, None without a name"""

    pk: int
    face_id: str
    role: str
    subject_pk: int | None
    subject: tuple[str, str | None] | None

    @property
    def owner(self) -> int:
        """See `LabelConstraints.from_labels`. A distractor is never named."""
        is_named = self.subject_pk is not None and self.role != "distractor"
        return 2 * self.subject_pk if self.subject_pk is not None and is_named else 2 * self.pk + 1


@dataclass(frozen=True, eq=False)
class ServedConstraints:
    """The constraints on the searches of a deployment, with what an answer says about them.

    change: the collection's last change when they were read
    faces: pk -> face, of all that have a settled label
    subjects: subject pk -> id and external id of the people among them
    joined_faces, members: person -> labelled faces and owners, of people whom labels joined
    """

    change: int = -1
    constraints: LabelConstraints = field(default_factory=LabelConstraints)
    faces: Mapping[int, ConstrainedFace] = field(default_factory=dict)
    subjects: Mapping[int, tuple[str, str | None]] = field(default_factory=dict)
    joined_faces: Mapping[int, Sequence[int]] = field(default_factory=dict)
    members: Mapping[int, Sequence[int]] = field(default_factory=dict)

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
    settled = label_consensus.decide_consensus(label_consensus.read_collection_votes(session, collection, task))
    if not len(settled):
        return ServedConstraints(change)
    columns = (settled.pairs.tolist(), settled.same.tolist(), settled.weights.tolist())
    labels = [LabelledPair(a, b, same, weight) for (a, b), same, weight in zip(*columns, strict=True)]
    faces = _read_faces(session, sorted({pk for label in labels for pk in label[:2]}))
    if task == BUILT_IN_TASK:
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
    return ServedConstraints(change, constraints, faces, subjects, joined_faces, members)


def _read_faces(session: Session, pks: Sequence[int]) -> dict[int, ConstrainedFace]:
    faces: dict[int, ConstrainedFace] = {}
    columns = (Face.pk, Face.face_id, Face.role, Face.subject_pk, Subject.id, Subject.external_id)
    chosen = select(*columns).outerjoin(Subject, Subject.pk == Face.subject_pk)
    for start in range(0, len(pks), FACES_PER_QUERY):
        for row in session.execute(chosen.where(Face.pk.in_(pks[start : start + FACES_PER_QUERY]))):
            subject = None if row.subject_pk is None else (row.id, row.external_id)
            faces[row.pk] = ConstrainedFace(row.pk, row.face_id, row.role, row.subject_pk, subject)
    return faces
