"""Store analysed photos as rows. The route and the workers both enrol through `enrol_photos`.

All embeddings are computed and all files written before the collection is locked. Under the lock, the pointers, the
files and the faces that exist already are checked again; then the rows and the change number are written.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from app.db.session import check_transaction, writing
from app.db.subject_ids import compose, list_spellings
from app.db.tables import Collection, Deployment, Face, Job, Subject, now
from app.enrolment.bulk_rows import insert_columns, insert_embeddings, make_face_ids
from app.enrolment.photo_analysis import AnalysedPhoto, round_box
from app.enrolment.preparation import PreparedPhotos, list_champions, list_models_to_embed, prepare_photos
from app.errors import Busy
from app.galleries.retention import find_refusal
from app.publishing import pointers
from app.queue.jobs import enqueue
from app.queue.messages import FitFirst
from app.resources import Resources
from app.storage.blob_store import Blobs
from app.storage.model_cache import LBP_MODEL

MAX_ATTEMPTS = 8


@dataclass(frozen=True, eq=False)
class EnrolmentOutcome:
    """The result for one photo.

    faces: with their subjects; new: whether any of them is new
    conflict: a face of this photo that is enrolled under another subject or role; then no face is enrolled
    refusal: NO_CONSENT or RETENTION_ENDED if no photo of its subject may be enrolled
    """

    photo: AnalysedPhoto
    faces: tuple[tuple[Face, Subject | None], ...] = ()
    new: bool = False
    conflict: Face | None = None
    refusal: str | None = None


class _PointersMovedError(Exception):
    """A pointer moved or a file was deleted between the preparation and the lock."""


def enrol_photos(
    resources: Resources,
    collection_id: str,
    photos: Sequence[AnalysedPhoto],
    prepared: PreparedPhotos,
    record: Callable[[Session, list[EnrolmentOutcome]], None] = lambda session, outcomes: None,
) -> list[EnrolmentOutcome]:
    """Store the new faces of these photos.

    prepared: of these photos, by `prepare_photos`; record: writes more rows in the same transaction

    Safe to repeat: faces that are enrolled already under the same subject and role are returned as they are.
    Raises NotFound, or Busy if the pointers keep moving.
    """
    files = [file for photo in photos for file in photo.files()]
    for _ in range(MAX_ATTEMPTS):
        written = [*files, *prepared.files]
        try:
            with resources.unfinished_photos.note(collection_id, [name for name, _ in written]):
                resources.blobs.put(collection_id, written)
                with writing(resources.database) as session:
                    transaction = _EnrolmentTransaction(session, resources, collection_id, photos, prepared)
                    outcomes = transaction.enrol()
                    record(session, outcomes)
                    transaction.remove_refused_files(outcomes)
        except _PointersMovedError:
            prepared = prepare_photos(resources, collection_id, photos)
            continue
        resources.notifier.notify("changes")
        return outcomes
    raise Busy("the models of this collection keep changing; try again")


def needs_first_model(session: Session, collection: Collection, after: int) -> bool:
    """Whether the collection has at least `after` gallery faces and its first learned model was not requested yet."""
    message = FitFirst(collection=collection.id)
    deployment = session.get(Deployment, (collection.id, "identity"))
    is_requested = exists().where(Job.lock == message.lock, Job.created_at >= collection.created_at)
    if not after or deployment is None or deployment.champion != LBP_MODEL or session.scalar(select(is_requested)):
        return False
    gallery = select(func.count()).where(Face.collection_id == collection.id, Face.role == "gallery")
    return (session.scalar(gallery) or 0) >= after


@dataclass(eq=False)
class _EnrolmentTransaction:
    """Writes the rows of some photos in one transaction.

    faces: (image id, number) -> face of these photos; people: composed id -> subject; names: pk -> composed id
    added: position of the embedding -> new face
    """

    session: Session
    resources: Resources
    collection_id: str
    photos: Sequence[AnalysedPhoto]
    prepared: PreparedPhotos
    faces: dict[tuple[str, int], Face] = field(default_factory=dict)
    people: dict[str, Subject] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    added: dict[int, Face] = field(default_factory=dict)

    def enrol(self) -> list[EnrolmentOutcome]:
        """Enrol the photos. Raises NotFound, _PointersMovedError."""
        collection = pointers.lock_collection(self.session, self.collection_id)
        self._check_preparation()
        self._read_existing()
        self._create_subjects()
        outcomes, position = [], 0
        for photo in self.photos:
            outcomes.append(self._enrol_photo(photo, collection.change + 1, position))
            position += len(photo.faces)
        if self.added:
            collection.change += 1
            self._write_rows()
            if needs_first_model(self.session, collection, self.resources.settings.wpca_after_faces):
                enqueue(self.session, FitFirst(collection=collection.id))
        return outcomes

    def remove_refused_files(self, outcomes: Sequence[EnrolmentOutcome]) -> None:
        """Remove the files of refused photos that no row names.

        Whoever enrols such a photo at the same time waits for the collection, and then writes them again.
        """
        refused = {outcome.photo.image_id for outcome in outcomes if outcome.refusal is not None}
        if not refused:
            return
        named = {*self.faces, *((image, None) for image, _ in self.faces)}
        names = [name for photo in self.photos for name in photo.names()] + [name for name, _ in self.prepared.files]
        owners = {name: Blobs.parse_name(name) for name in names}
        unnamed = [name for name, owner in owners.items() if owner[0] in refused and owner not in named]
        self.resources.blobs.remove(self.collection_id, unnamed, partial(check_transaction, self.session))

    def _check_preparation(self) -> None:
        """Raises _PointersMovedError if a model has no embeddings, or a file is missing."""
        models = list_models_to_embed(self.session, self.collection_id)
        models -= self.prepared.left_out - list_champions(self.session, self.collection_id)
        if any(photo.faces for photo in self.photos) and not models <= self.prepared.vectors.keys():
            raise _PointersMovedError
        names = (name for photo in self.photos for name in photo.names())
        if not self.resources.blobs.has(self.collection_id, names):
            raise _PointersMovedError

    def _read_existing(self) -> None:
        """Read the faces of these photos, and the subjects, that exist already."""
        images = {photo.image_id for photo in self.photos}
        rows = select(Face).where(Face.collection_id == self.collection_id, Face.image_id.in_(images))
        self.faces = {(f.image_id, f.number): f for f in self.session.scalars(rows)}
        named = {photo.request.subject for photo in self.photos if photo.request.subject}
        ids = {spelling for name in named for spelling in list_spellings(name)}
        pks = {f.subject_pk for f in self.faces.values() if f.subject_pk}
        is_here = Subject.collection_id == self.collection_id
        people = [*self.session.scalars(select(Subject).where(is_here, Subject.id.in_(ids)))]
        people += self.session.scalars(select(Subject).where(is_here, Subject.pk.in_(pks)))
        people.sort(key=lambda subject: subject.id == compose(subject.id))  # where there are two, the composed id wins
        self.people = {compose(p.id): p for p in people}
        self.names = {p.pk: compose(p.id) for p in people}

    def _create_subjects(self) -> None:
        """Create the subjects of new faces that do not exist yet. Where consent is needed, nobody is new."""
        if self.resources.settings.require_consent:
            return
        enrolled = {photo.image_id: photo for photo in reversed(self.photos) if self._find_refusal(photo) is None}
        requests = [
            photo.request
            for photo in enrolled.values()  # the first of each photo: others are enrolled alike, or refused
            if photo.request.number in photo.faces and (photo.image_id, photo.request.number) not in self.faces
        ]
        missing = {
            request.subject: request.external_id or request.subject
            for request in requests
            if request.subject and request.subject not in self.people
        }
        created = {
            name: Subject(collection_id=self.collection_id, id=name, external_id=external_id)
            for name, external_id in missing.items()
        }
        self.session.add_all(created.values())
        self.session.flush()
        self.people |= created
        self.names |= {subject.pk: name for name, subject in created.items()}

    def _enrol_photo(self, photo: AnalysedPhoto, change: int, position: int) -> EnrolmentOutcome:
        """Find or create the rows of the photo's faces. position: of the embedding of its first face"""
        for number in photo.faces:
            existing = self.faces.get((photo.image_id, number))
            if existing is not None and not _is_same_enrolment(existing, photo, number, self.names):
                return EnrolmentOutcome(photo, conflict=existing)
        refusal = self._find_refusal(photo)
        if refusal is not None:
            return EnrolmentOutcome(photo, refusal=refusal)
        new = False
        faces = []
        for face_position, number in enumerate(photo.faces, position):
            subject = self.people[name] if (name := photo.request.get_subject(number)) else None
            face = self.faces.get((photo.image_id, number))
            if face is None:
                new = True
                face = _make_row(self.collection_id, photo, number, subject, change)
                self.faces[photo.image_id, number] = self.added[face_position] = face
            faces.append((face, subject))
        return EnrolmentOutcome(photo, tuple(faces), new)

    def _find_refusal(self, photo: AnalysedPhoto) -> str | None:
        """Return why the person of a new face may not be enrolled; None if nothing speaks against it."""
        name, number = photo.request.subject, photo.request.number
        if name is None or number not in photo.faces or (photo.image_id, number) in self.faces:
            return None
        return find_refusal(self.people.get(name), self.resources.settings.require_consent)

    def _write_rows(self) -> None:
        """Write the new faces and their embeddings. The faces get their keys, and stay outside of the session."""
        faces = list(self.added.values())
        for face, face_id in zip(faces, make_face_ids(len(faces)), strict=True):
            face.face_id = face_id
        insert_columns(self.session, Face, len(faces), _list_columns(faces))
        columns = Face.__table__.c
        is_new = (columns.collection_id == self.collection_id, columns.change == faces[0].change)
        chosen = select(columns.face_id, columns.pk).where(*is_new)
        pks = {row.face_id: row.pk for row in self.session.connection().execute(chosen)}
        for face in faces:
            face.pk = pks[face.face_id]
        positions = list(self.added)
        for (model, task), rows in self.prepared.vectors.items():
            insert_embeddings(self.session, model, task, [face.pk for face in faces], rows[positions])


def _is_same_enrolment(face: Face, photo: AnalysedPhoto, number: int, names: dict[int, str]) -> bool:
    """Whether a stored face has the subject and role that the photo is enrolled with. names: pk of a subject -> id"""
    subject = names[face.subject_pk] if face.subject_pk is not None else None
    return (subject, face.role) == (photo.request.get_subject(number), photo.request.role)


def _make_row(collection_id: str, photo: AnalysedPhoto, number: int, subject: Subject | None, change: int) -> Face:
    face = photo.faces[number]
    quality = {k: round(v, 3) for k, v in vars(face.quality).items() if k != "reasons"}
    return Face(
        collection_id=collection_id,
        subject_pk=subject.pk if subject else None,
        role=photo.request.role,
        image_id=photo.image_id,
        number=number,
        external_image_id=photo.request.external_image_id,
        source=photo.request.source,
        bounding_box=round_box(face.box),
        landmarks=[[round(v, 2) for v in point] for point in face.landmarks.tolist()],
        quality=quality,
        attributes=photo.request.metadata,
        change=change,
        created_at=now(),
    )


def _list_columns(faces: Sequence[Face]) -> dict[str, list[Any]]:
    """Return the values of the new faces by column, for `insert_columns`."""
    return {
        "face_id": [face.face_id for face in faces],
        "collection_id": [face.collection_id for face in faces],
        "subject_pk": [face.subject_pk for face in faces],
        "role": [face.role for face in faces],
        "image_id": [face.image_id for face in faces],
        "number": [face.number for face in faces],
        "external_image_id": [face.external_image_id for face in faces],
        "source": [face.source for face in faces],
        "bounding_box": [json.dumps(face.bounding_box) for face in faces],
        "landmarks": [json.dumps(face.landmarks) for face in faces],
        "quality": [json.dumps(face.quality) for face in faces],
        "metadata": [json.dumps(face.attributes) for face in faces],
        "change": [face.change for face in faces],
        "created_at": [face.created_at for face in faces],
    }
