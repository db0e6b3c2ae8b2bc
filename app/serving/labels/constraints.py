"""What the settled labels of a collection mean for its searches."""

import math
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from sqlalchemy import not_, select
from sqlalchemy.orm import Session

from app.db.id_lists import select_ids
from app.db.tables import BUILT_IN_TASK, Collection, Face, Subject, now
from app.galleries.retention import may_be_used
from ml.files import hash_bytes
from ml.identification.label_constraints import ConstraintBuilder, LabelConstraints, LabelledPair
from ml.identification.person_distance import SHORTLIST_PEOPLE


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
    ended: how many of these times are over -> whose they are, as last listed
    """

    task: str = BUILT_IN_TASK
    labels: Sequence[LabelledPair] = ()
    faces: Mapping[int, ConstrainedFace] = field(default_factory=dict)
    ends_of_use: Mapping[int, float] = field(default_factory=dict)
    ended: dict[int, frozenset[int]] = field(default_factory=dict)

    @cached_property
    def _rising_ends(self) -> tuple[list[float], list[int]]:
        """The ends of use, and the subjects whose they are."""
        pks = sorted(self.ends_of_use, key=self.ends_of_use.__getitem__)
        return [self.ends_of_use[pk] for pk in pks], pks

    def list_ended(self, at: float) -> frozenset[int]:
        """Return the pks of the subjects whose faces may not be used at that time.

        It is the same object until the next one's time is over: every search asks.
        """
        ends, pks = self._rising_ends
        count = bisect_right(ends, at)
        ended = self.ended.get(count)
        if ended is None:
            ended = frozenset(pks[:count])
            self.ended.clear()
            self.ended[count] = ended
        return ended


@dataclass(eq=False)
class LastDerived:
    """The constraints that were last derived from settled labels with other people left out.

    lock: held to derive them, so that requests that need them wait for one derivation
    """

    constraints: "ServedConstraints | None" = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, eq=False)
class ServedConstraints:
    """The constraints on the searches of a deployment, with what an answer says about them.

    Labels of faces that may not be used, by `may_be_used`, have no part in them: see `leave_out`.

    change: the collection's last change when they were read; 0 before: then there are no labels
    faces: pk -> face, of all that have a settled label
    subjects: subject pk -> id and external id of the people among them
    labels: face -> its settled labels
    joined_faces, members: person -> labelled faces and owners, of people whom labels joined
    settled: all settled labels; left_out: pks of the subjects whose labels are left out
    crowds: see `_find_crowds`
    derived: from the same settled labels, with others left out
    """

    change: int = 0
    constraints: LabelConstraints = field(default_factory=LabelConstraints)
    faces: Mapping[int, ConstrainedFace] = field(default_factory=dict)
    subjects: Mapping[int, tuple[str, str | None]] = field(default_factory=dict)
    joined_faces: Mapping[int, Sequence[int]] = field(default_factory=dict)
    members: Mapping[int, Sequence[int]] = field(default_factory=dict)
    labels: Mapping[int, Sequence[LabelledPair]] = field(default_factory=dict)
    settled: SettledLabels = field(default_factory=SettledLabels)
    left_out: frozenset[int] = frozenset()
    crowds: frozenset[int] = frozenset()
    derived: LastDerived = field(default_factory=LastDerived)

    def __bool__(self) -> bool:
        return bool(self.constraints)

    @cached_property
    def joined_people(self) -> Mapping[int, int]:
        """Owner -> the person with a name whom labels joined it to, of other people with a name and of distractors."""
        joined = {
            owner: person for owner, person in self.constraints.joined.items() if owner != person and not person % 2
        }
        distractors = {face.owner for face in self.faces.values() if face.role == "distractor"} if joined else set()
        return {owner: person for owner, person in joined.items() if not owner % 2 or owner in distractors}

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


def hash_labels(labelled_subjects: Mapping[int, int], joined_people: Mapping[int, int]) -> str:
    """Return a hash of whom labels name and join: see `LabelConstraints.labelled_subjects` and `joined_people`."""
    return hash_bytes(repr((sorted(labelled_subjects.items()), sorted(joined_people.items()))).encode())


def leave_out_refused(session: Session, collection: str, constraints: ServedConstraints) -> ServedConstraints:
    """Return the constraints without the labels of people whose faces may not be used now.

    Someone may have refused consent, or been erased, since the constraints were read: then the subjects are read anew.
    """
    if not constraints.settled.labels:
        return constraints
    last = select(Collection.label_change).where(Collection.id == collection)
    if (session.scalar(last) or 0) <= constraints.change:
        ended = constraints.settled.list_ended(now())
    else:
        ended = _find_ended(session, collection, constraints)
    return leave_out(constraints, ended)


def _find_ended(session: Session, collection: str, constraints: ServedConstraints) -> frozenset[int]:
    """Return those of the labelled subjects whose faces may not be used as the subjects are now, or who are erased.

    So is one who had a labelled face that is now of such a person, as after a merge.
    """
    settled = constraints.settled
    subjects = {face.subject_pk for face in settled.faces.values() if face.subject_pk}
    pks = select_ids(session, sorted(subjects))
    usable = select(Subject.pk).where(Subject.pk.in_(pks), may_be_used(now()))
    unusable = set(session.scalars(pks.except_(usable)))
    there = session.scalars(select(Subject.pk).where(Subject.pk.in_(select_ids(session, sorted(unusable)))))
    ended = unusable - _find_merged(session, settled, unusable.difference(there))
    changed = select(Face.pk).where(Face.collection_id == collection, Face.change > constraints.change)
    refused = changed.join(Subject, Subject.pk == Face.subject_pk).where(not_(may_be_used(now())))
    owners = {settled.faces[pk].subject_pk for pk in session.scalars(refused) if pk in settled.faces}
    return frozenset(ended.union(pk for pk in owners if pk))


def _find_merged(session: Session, settled: SettledLabels, gone: set[int]) -> set[int]:
    """Return those of these subjects, whose rows are gone, who were merged into one that has a labelled face of theirs.

    An erased one may have left faces, too, which were given to somebody else before.
    """
    if not gone:
        return set()
    names = {face.pk: (face.subject_pk, face.subject) for face in settled.faces.values() if face.subject_pk in gone}
    faces = Face.pk.in_(select_ids(session, sorted(names)))
    holders = select(Face.subject_pk).where(faces, Face.subject_pk.is_not(None))
    lists = session.scalars(select(Subject.merged_subjects).where(Subject.pk.in_(holders)))
    merged = {(one.get("pk"), one["id"]) for known in lists for one in known}
    return {pk for pk, subject in names.values() if pk and subject and (pk, subject[0]) in merged}


def find_left_out(constraints: ServedConstraints, subjects: frozenset[int]) -> ServedConstraints | None:
    """Return what `leave_out` returns if it is known; None if it must be derived, which may take seconds."""
    if subjects is constraints.left_out or subjects == constraints.left_out:
        return constraints
    known = constraints.derived.constraints
    if known is None or (subjects is not known.left_out and subjects != known.left_out):
        return None
    return known if known.change == constraints.change else replace(known, change=constraints.change)


def leave_out(constraints: ServedConstraints, subjects: frozenset[int]) -> ServedConstraints:
    """Return the constraints that the labels of all others mean. subjects: pks of the people who are left out"""
    known = find_left_out(constraints, subjects)
    if known is not None:
        return known
    with constraints.derived.lock:
        known = find_left_out(constraints, subjects)
        if known is None:
            known = derive_constraints(constraints.settled, constraints.change, subjects)
            constraints.derived.constraints = known
        return known


class ConstraintDerivation:
    """Derive the constraints of the labels whose faces may be used, from labels that are added step by step.

    Labels of identity join people and rule people out; those of another task only keep pairs from matching each other.

    left_out: pks of the subjects whose faces may not be used
    """

    def __init__(self, task: str, left_out: frozenset[int]) -> None:
        self.task, self.left_out = task, left_out
        self._owners: dict[int, int] = {}
        self._builder = ConstraintBuilder(self._owners)
        self._separations: list[LabelledPair] = []
        self._faces: dict[int, ConstrainedFace] = {}
        self._faces_of: defaultdict[int, list[int]] = defaultdict(list)
        self._subjects: dict[int, tuple[str, str | None]] = {}
        self._labels: dict[int, tuple[LabelledPair, ...]] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        self._joined_faces: dict[int, tuple[int, ...]] = {}

    def add(self, labels: Iterable[LabelledPair], faces: Iterable[ConstrainedFace]) -> bool:
        """Add labels of pairs that have none yet, with the faces that had no label before.

        Return False if all have to be added at once to a new one: see `ConstraintBuilder.add`.
        """
        for face in faces:
            if face.subject_pk not in self.left_out:
                self._add_face(face)
        labels = [label for label in labels if label.face_a in self._faces and label.face_b in self._faces]
        added: defaultdict[int, list[LabelledPair]] = defaultdict(list)
        for label in labels:
            for pk in label[:2]:
                added[pk].append(label)
        for pk, of_face in added.items():
            self._labels[pk] = (*self._labels.get(pk, ()), *of_face)
        if self.task != BUILT_IN_TASK:
            self._separations += labels
            return True
        owners = {self._owners[pk] for label in labels for pk in label[:2]}
        for owner in owners:
            person = self._builder.person(owner)
            self._members.pop(person, None)
            self._joined_faces.pop(person, None)
        is_added = self._builder.add(labels)
        for person in {self._builder.person(owner) for owner in owners}:
            self._note_members(person)
        return is_added

    def _add_face(self, face: ConstrainedFace) -> None:
        self._faces[face.pk], self._owners[face.pk] = face, face.owner
        self._faces_of[face.owner].append(face.pk)
        if face.subject_pk and face.subject:
            self._subjects[face.subject_pk] = face.subject

    def _note_members(self, person: int) -> None:
        members = tuple(self._builder.members(person))
        if len(members) > 1:
            self._members[person] = members
            self._joined_faces[person] = tuple(pk for member in members for pk in self._faces_of[member])

    def derive(self, settled: SettledLabels, change: int) -> ServedConstraints:
        """Return the constraints of all labels so far. Later additions do not change them."""
        is_identity = self.task == BUILT_IN_TASK
        constraints = self._builder.build() if is_identity else LabelConstraints.from_separations(self._separations)
        return ServedConstraints(
            change,
            constraints,
            dict(self._faces),
            dict(self._subjects),
            dict(self._joined_faces),
            dict(self._members),
            dict(self._labels),
            settled,
            self.left_out,
            _find_crowds(self._members, self._faces.values()),
        )


def _find_crowds(members: Mapping[int, Sequence[int]], faces: Iterable[ConstrainedFace]) -> frozenset[int]:
    """Find people of whom labels joined so many with a name, or distractors, that no next person may be near them.

    How much nearer they are than the next person then says nothing, and strangers would be named.
    """
    large = {person: owners for person, owners in members.items() if len(owners) > SHORTLIST_PEOPLE}
    distractors = {face.owner for face in faces if face.role == "distractor"} if large else set()
    rivals = {person: sum(not o % 2 or o in distractors for o in owners) for person, owners in large.items()}
    return frozenset(person for person, count in rivals.items() if count > SHORTLIST_PEOPLE)


def derive_constraints(settled: SettledLabels, change: int, left_out: frozenset[int]) -> ServedConstraints:
    """Derive the constraints of the labels whose faces may be used. left_out: subject pks of the others"""
    derivation = ConstraintDerivation(settled.task, left_out)
    derivation.add(settled.labels, settled.faces.values())
    return derivation.derive(settled, change)
