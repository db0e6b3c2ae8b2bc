"""Read the settled labels of a collection: at first all of them, then those that were added since."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.id_lists import select_ids
from app.db.tables import Face, Subject, now
from app.galleries.label_consensus import ConsensusRule, VotesByPair, decide_pair, read_rule, read_votes_after
from app.galleries.retention import find_end_of_use
from app.serving.labels.constraints import ConstrainedFace, ConstraintDerivation, ServedConstraints, SettledLabels
from ml.identification.label_constraints import LabelledPair

FACES_PER_QUERY = 10_000


def read_constraints(session: Session, collection: str, task: str, change: int) -> ServedConstraints:
    """Read the constraints that the settled labels put on searches for a task in a collection.

    A label of a face in another collection has no effect here. change: the collection's last change
    """
    return LabelReader(collection, task).read_all(session, change)


@dataclass(eq=False)
class _LabelsRead:
    """What has been read of a collection's labels.

    last_pk: of all labels; settled: pair -> what its votes say; faces: pk -> face, of all settled labels
    ends_of_use: see `SettledLabels`; derivation: has all settled labels
    """

    rule: ConsensusRule
    last_pk: int = 0
    votes: VotesByPair = field(default_factory=dict)
    settled: dict[tuple[int, int], LabelledPair] = field(default_factory=dict)
    faces: dict[int, ConstrainedFace] = field(default_factory=dict)
    ends_of_use: dict[int, float] = field(default_factory=dict)
    derivation: ConstraintDerivation | None = None


class LabelReader:
    """Read the labels of a collection for a task, and remember them, so that only new ones are read the next time."""

    def __init__(self, collection: str, task: str) -> None:
        self.collection, self.task = collection, task
        self._read: _LabelsRead | None = None

    def read_all(self, session: Session, change: int) -> ServedConstraints:
        """Read all labels. change: the collection's last change"""
        self._read = None
        return self.read_new(session, change)

    def read_new(self, session: Session, change: int) -> ServedConstraints:
        """Read the labels that were added since the last reading, and the names of the faces that had no label before.

        This is enough if only additions have changed what labels mean: see `Collection.label_reread_change`.
        change: the collection's last change
        """
        rule = read_rule(session, self.collection, self.task)
        read, self._read = self._read, None  # so that all are read after an error
        if read is None or read.rule != rule:
            read = _LabelsRead(rule)
        added, read.last_pk = read_votes_after(session, self.collection, self.task, read.last_pk)
        for pair, votes in added.items():
            read.votes[pair] = read.votes.get(pair, {}) | votes
        new = _settle(read, read.votes if rule.by_agreement else added)
        faces = _read_faces(session, sorted({pk for label in new for pk in label[:2]} - read.faces.keys()))
        read.faces |= faces
        read.ends_of_use |= _find_ends_of_use(faces.values())
        settled = SettledLabels(self.task, list(read.settled.values()), dict(read.faces), dict(read.ends_of_use))
        ended = settled.list_ended(now())
        derivation = read.derivation
        if derivation is None or derivation.left_out != ended or not derivation.add(new, faces.values()):
            read.derivation = derivation = ConstraintDerivation(self.task, ended)
            derivation.add(settled.labels, settled.faces.values())
        derivation.left_out = ended  # equal, but compared in no time with what `list_ended` returns
        self._read = read
        return derivation.derive(settled, change)


def _settle(read: _LabelsRead, pairs: Iterable[tuple[int, int]]) -> list[LabelledPair]:
    """Decide these pairs. Return the labels of those that had none; if others change, all are to be derived anew."""
    weight_of = read.rule.weigh(read.votes)
    new = []
    for pair in pairs:
        decision = decide_pair(read.votes[pair], weight_of, read.rule.quorum)
        before = read.settled.pop(pair, None)
        label = None if decision is None else LabelledPair(*pair, *decision)
        if label is not None:
            read.settled[pair] = label
            if before is None:
                new.append(label)
        if before is not None and label != before:
            read.derivation = None
    if read.derivation is None:
        labelled = {pk for pair in read.settled for pk in pair}
        read.faces = {pk: face for pk, face in read.faces.items() if pk in labelled}
        read.ends_of_use = _find_ends_of_use(read.faces.values())
    return new


def _find_ends_of_use(faces: Iterable[ConstrainedFace]) -> dict[int, float]:
    """Return subject pk -> the end of use, of the named faces for which it is known."""
    return {face.subject_pk: face.end_of_use for face in faces if face.subject_pk and face.end_of_use < math.inf}


def _read_faces(session: Session, pks: list[int]) -> dict[int, ConstrainedFace]:
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
