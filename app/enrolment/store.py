"""Photos that were looked at become rows: the one way in, for the route and the worker alike.

Everything is computed and every file is on the disk before the collection is locked. Under the lock the pointers, the
files and the photos that are there already are looked at once more, then rows, change number and commit follow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import exists, func, insert, select
from sqlalchemy.orm import Session

from app.db.session import writing
from app.db.tables import Collection, Deployment, Embedding, Face, Job, Subject
from app.enrolment.photo_analysis import AnalysedPhoto, rounded_box
from app.enrolment.preparation import Prepared, prepared, served
from app.errors import Busy
from app.publishing import pointers
from app.queue.jobs import enqueue
from app.queue.messages import FitFirst
from app.resources import Resources
from app.storage.embedding_codec import encode_embeddings
from app.storage.model_cache import FIRST

ATTEMPTS = 8


@dataclass(frozen=True, eq=False)
class EnrolmentOutcome:
    """What became of a photo: its faces with their subjects, or the face that contradicts it."""

    looked: AnalysedPhoto
    faces: tuple[tuple[Face, Subject | None], ...] = ()
    new: bool = False
    conflict: Face | None = None


class _Moved(Exception):
    """The pointers moved, or a file went away, between the preparation and the lock."""


def enrol_photos(
    resources: Resources,
    collection_id: str,
    looked: Sequence[AnalysedPhoto],
    ready: Prepared,
    record: Callable[[Session, list[EnrolmentOutcome]], None] = lambda session, outcomes: None,
) -> list[EnrolmentOutcome]:
    """Keeps what is new of these photos. `ready` comes from `prepared`; `record` writes in the same transaction.

    Safe to repeat: a photo that is there under the same subject and role is answered as it is there.
    Raises NotFound, Busy.
    """
    files = [file for photo in looked for file in photo.files()]
    for _ in range(ATTEMPTS):
        resources.blobs.put(collection_id, [*files, *ready.files])
        try:
            with writing(resources.database) as session:
                outcomes = _Chunk(session, resources, collection_id, looked, ready).keep()
                record(session, outcomes)
        except _Moved:
            ready = prepared(resources, collection_id, looked)
            continue
        resources.notifier.notify("changes")
        return outcomes
    raise Busy("the models of this collection keep changing; try again")


def first_model_wanted(session: Session, collection: Collection, after: int) -> bool:
    """Whether the collection has faces enough for its first learned model, and nobody has asked for it yet."""
    message = FitFirst(collection=collection.id)
    deployment = session.get(Deployment, (collection.id, "identity"))
    is_requested = exists().where(Job.lock == message.lock, Job.created_at >= collection.created_at)
    if not after or deployment is None or deployment.champion != FIRST or session.scalar(select(is_requested)):
        return False
    gallery = select(func.count()).where(Face.collection_id == collection.id, Face.role == "gallery")
    return (session.scalar(gallery) or 0) >= after


@dataclass(eq=False)
class _Chunk:
    """Some photos on their way into the tables, within one transaction."""

    session: Session
    resources: Resources
    collection_id: str
    looked: Sequence[AnalysedPhoto]
    ready: Prepared
    faces: dict[tuple[str, int], Face] = field(default_factory=dict)
    people: dict[str, Subject] = field(default_factory=dict)
    added: dict[int, Face] = field(default_factory=dict)  # the number of its vector -> the face

    def keep(self) -> list[EnrolmentOutcome]:
        collection = pointers.lock_collection(self.session, self.collection_id)
        self._check()
        self._read()
        self._make_people()
        outcomes, at = [], 0
        theirs = {p.pk: p.id for p in self.people.values()}
        for photo in self.looked:
            outcomes.append(self._place(photo, collection.change + 1, at, theirs))
            at += len(photo.faces)
        if self.added:
            collection.change += 1
            self._write()
            if first_model_wanted(self.session, collection, self.resources.settings.wpca_after_faces):
                enqueue(self.session, FitFirst(collection=collection.id))
        return outcomes

    def _check(self) -> None:
        """Raises _Moved."""
        if (
            any(photo.faces for photo in self.looked)
            and not served(self.session, self.collection_id) <= self.ready.vectors.keys()
        ):
            raise _Moved
        names = (name for photo in self.looked for name in photo.names())
        if not self.resources.blobs.has(self.collection_id, names):
            raise _Moved

    def _read(self) -> None:
        """What is there already of these photos and people."""
        images = {photo.image_id for photo in self.looked}
        rows = select(Face).where(Face.collection_id == self.collection_id, Face.image_id.in_(images))
        self.faces = {(f.image_id, f.number): f for f in self.session.scalars(rows)}
        ids = {photo.wish.subject for photo in self.looked if photo.wish.subject}
        pks = {f.subject_pk for f in self.faces.values() if f.subject_pk}
        here = Subject.collection_id == self.collection_id
        people = [*self.session.scalars(select(Subject).where(here, Subject.id.in_(ids)))]
        people += self.session.scalars(select(Subject).where(here, Subject.pk.in_(pks)))
        self.people = {p.id: p for p in people}

    def _make_people(self) -> None:
        """The subjects of new faces, where they are missing."""
        wishes = [
            p.wish for p in self.looked if p.wish.number in p.faces and (p.image_id, p.wish.number) not in self.faces
        ]
        missing = {w.subject: w.external_id or w.subject for w in wishes if w.subject and w.subject not in self.people}
        made = {
            name: Subject(collection_id=self.collection_id, id=name, external_id=external_id)
            for name, external_id in missing.items()
        }
        self.session.add_all(made.values())
        self.session.flush()
        self.people |= made

    def _place(self, photo: AnalysedPhoto, change: int, at: int, theirs: dict[int, str]) -> EnrolmentOutcome:
        """The photo's faces, old or new. at: the number of the vector of the first of them; theirs: people by pk."""
        for number in photo.faces:
            old = self.faces.get((photo.image_id, number))
            if old is not None and not _agrees(old, photo, number, theirs):
                return EnrolmentOutcome(photo, conflict=old)
        new = False
        placed = []
        for vector, number in enumerate(photo.faces, at):
            subject = self.people[name] if (name := photo.wish.of(number)) else None
            face = self.faces.get((photo.image_id, number))
            if face is None:
                new = True
                face = _row(self.collection_id, photo, number, subject, change)
                self.faces[photo.image_id, number] = self.added[vector] = face
            placed.append((face, subject))
        return EnrolmentOutcome(photo, tuple(placed), new)

    def _write(self) -> None:
        self.session.add_all(self.added.values())
        self.session.flush()
        numbers, faces = list(self.added), list(self.added.values())
        for (model, task), rows in self.ready.vectors.items():
            vectors = encode_embeddings(rows[numbers])
            embeddings = [
                {"model_id": model, "task": task, "face_pk": face.pk, "vector": vector}
                for face, vector in zip(faces, vectors, strict=True)
            ]
            self.session.execute(insert(Embedding), embeddings)


def _agrees(face: Face, photo: AnalysedPhoto, number: int, people: dict[int, str]) -> bool:
    subject = people[face.subject_pk] if face.subject_pk is not None else None
    return (subject, face.role) == (photo.wish.of(number), photo.wish.role)


def _row(collection_id: str, photo: AnalysedPhoto, number: int, subject: Subject | None, change: int) -> Face:
    face = photo.faces[number]
    quality = {k: round(v, 3) for k, v in vars(face.quality).items() if k != "reasons"}
    return Face(
        collection_id=collection_id,
        subject_pk=subject.pk if subject else None,
        role=photo.wish.role,
        image_id=photo.image_id,
        number=number,
        external_image_id=photo.wish.external_image_id,
        bounding_box=rounded_box(face.box),
        landmarks=[[round(float(v), 2) for v in point] for point in face.landmarks],
        quality=quality,
        attributes=photo.wish.metadata,
        change=change,
    )
