"""What one client has written, as far as it was answered, to be compared with what the service holds."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Fact = tuple[object, ...]
"""One thing that the service holds: its kind, its name and all its values."""


@dataclass
class WrittenFace:
    """A face. face_id: empty while its import has not ended; subject: None if it has none"""

    face_id: str
    subject: str | None


@dataclass
class WrittenSubject:
    """A subject. retain_until: seconds since 1970"""

    external_id: str
    consent: bool | None = None
    retain_until: float | None = None


class WrittenLabel(NamedTuple):
    """A label. photos: of its two faces, in the order of their names; by: the labeller whom the request named"""

    photos: tuple[str, str]
    same: bool
    by: str
    is_withdrawn: bool = False


@dataclass
class WrittenKey:
    """A key. secret: empty if its answer was lost"""

    id: str
    secret: str
    is_revoked: bool = False


@dataclass
class ClientRecord:
    """What a client has written.

    faces: by photo; subjects: by id, with those of imports; labels: in any order, those of deleted faces left out
    vectors: imported ones by name, each with its subject; keys: by name
    trainings, imports, deletions: how many were carried out
    champion, previous: of the deployment, None for a client that moves no pointers
    moves: the reasons of the publications and roll backs of this trial
    """

    faces: dict[str, WrittenFace] = field(default_factory=dict)
    subjects: dict[str, WrittenSubject] = field(default_factory=dict)
    labels: list[WrittenLabel] = field(default_factory=list)
    vectors: dict[str, str] = field(default_factory=dict)
    keys: dict[str, WrittenKey] = field(default_factory=dict)
    trainings: int = 0
    imports: int = 0
    deletions: int = 0
    champion: str | None = None
    previous: str | None = None
    moves: list[str] = field(default_factory=list)

    def list_facts(self) -> Counter[Fact]:
        """Return what the service should hold of this client, each as often as it should."""
        facts = Counter[Fact](("face", photo, face.subject) for photo, face in self.faces.items())
        facts.update(("subject", id, s.external_id, s.consent, s.retain_until) for id, s in self.subjects.items())
        facts.update(("label", *label) for label in self.labels)
        facts.update(("vector", *vector) for vector in self.vectors.items())
        facts.update(("key", name, key.is_revoked) for name, key in self.keys.items())
        facts.update(("move", reason) for reason in self.moves)
        facts["training",] = self.trainings
        if self.champion:
            facts["champion", self.champion] = 1
        return +facts

    def list_usable(self, *, named: bool = False) -> list[str]:
        """List the photos whose faces can be changed now. named: only those with a subject that may be enrolled."""
        return [
            photo
            for photo, face in self.faces.items()
            if face.face_id and (not named or (face.subject is not None and self.may_be_enrolled(face.subject)))
        ]

    def list_people(self) -> list[str]:
        """List the subjects that may be enrolled and have faces, none of which is being imported."""
        waiting = {face.subject for face in self.faces.values() if not face.face_id}
        people = dict.fromkeys(self.faces[photo].subject for photo in self.list_usable(named=True))
        return [person for person in people if person is not None and person not in waiting]

    def may_be_enrolled(self, subject: str) -> bool:
        return self.subjects[subject].consent is not False

    def add_face(self, photo: str, face_id: str, subject: str | None) -> None:
        """Note a face, and its subject if it is new."""
        self.faces[photo] = WrittenFace(face_id, subject)
        if subject is not None:
            self.subjects.setdefault(subject, WrittenSubject(subject))

    def remove_face(self, photo: str) -> None:
        """Note that a face is deleted, with its labels."""
        del self.faces[photo]
        self.labels = [label for label in self.labels if photo not in label.photos]

    def import_faces(self, photos: Iterable[str], subject: str) -> None:
        """Note an import of the photos of one new person."""
        self.imports += 1
        for photo in photos:
            self.add_face(photo, "", subject)

    def import_vectors(self, people: Mapping[str, str]) -> None:
        """Note an import of vectors. people: name of each -> its subject"""
        self.imports += 1
        self.vectors |= people

    def erase_face(self, photo: str) -> None:
        """Note the deletion of one face."""
        self.remove_face(photo)
        self.deletions += 1

    def erase_subject(self, subject: str) -> None:
        """Note the deletion of a subject with all its faces."""
        for photo in [photo for photo, face in self.faces.items() if face.subject == subject]:
            self.remove_face(photo)
        del self.subjects[subject]
        self.deletions += 1

    def merge(self, subject: str, into: str) -> None:
        """Note that a subject was merged: the consent of either and the earlier `retain_until` hold."""
        merged, kept = self.subjects.pop(subject), self.subjects[into]
        for face in self.faces.values():
            face.subject = into if face.subject == subject else face.subject
        kept.consent = kept.consent or merged.consent
        moments = [moment for moment in (kept.retain_until, merged.retain_until) if moment is not None]
        kept.retain_until = min(moments, default=None)

    def withdraw(self, labeller: str) -> None:
        """Note that all labels of a labeller are withdrawn."""
        self.labels = [label._replace(is_withdrawn=label.is_withdrawn or label.by == labeller) for label in self.labels]

    def publish(self, model: str | None, reason: str) -> None:
        """Note that a model was published, or that the previous one was rolled back to."""
        self.champion, self.previous = model, self.champion
        self.moves.append(reason)
