"""Faces: enrolled, listed, changed, removed; archives accepted."""

from pathlib import Path
from typing import Literal, NamedTuple

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.db.field_types import Role
from app.db.lookups import get_collection
from app.db.session import reading
from app.db.tables import Face, Job, Subject
from app.deps.paging import page
from app.enrolment.archives import ArchiveLimits, check_first
from app.enrolment.photo_analysis import EnrolmentRequest, analyse_photo
from app.enrolment.preparation import prepared
from app.enrolment.store import EnrolmentOutcome, enrol_photos
from app.errors import Conflict, Forbidden, Invalid, NotFound
from app.faces.schemas import EnrolledOut, FaceOut, FacePatch, FacesOut, UnindexedOut
from app.galleries import subjects
from app.publishing import pointers
from app.queue.jobs import enqueue
from app.queue.messages import ImportArchive
from app.resources import Resources
from app.serving.engine import Engine
from app.storage.blob_store import Blobs
from ml.types import CropKind

PRIVATE = {"Cache-Control": "private, max-age=60", "X-Content-Type-Options": "nosniff"}


def add(engine: Engine, collection: str, data: bytes, wish: EnrolmentRequest) -> tuple[EnrolledOut, bool]:
    """The photo's faces, and whether any of them is new. Raises NotFound, Conflict, Busy, ml.Unreadable."""
    resources = engine.resources
    known(resources, collection)
    with engine.slots.reserve():
        looked = analyse_photo(resources, data, wish)
        ready = prepared(resources, collection, [looked])
    [outcome] = enrol_photos(resources, collection, [looked], ready)
    return _told(outcome), outcome.new


def known(resources: Resources, collection: str) -> None:
    """Before anything dear is done. Raises NotFound."""
    with reading(resources.database) as session:
        get_collection(session, collection)


def _told(outcome: EnrolmentOutcome) -> EnrolledOut:
    if outcome.conflict is not None:
        raise Conflict(
            "this photo is enrolled under another subject or role; change or delete that face first",
            code="DuplicateWithOtherSubject",
            face_id=outcome.conflict.face_id,
        )
    return EnrolledOut(
        face_records=[FaceOut.of(face, subject) for face, subject in outcome.faces],
        unindexed_faces=[UnindexedOut.of(seen) for seen in outcome.looked.unindexed],
    )


class FaceFilter(NamedTuple):
    """Which faces are listed, and in what order; an empty subject or role is none."""

    subject: str | None
    role: str | None
    order: Literal["oldest", "newest"] = "oldest"


def listed(session: Session, collection: str, wanted: FaceFilter, limit: int, token: str | None) -> FacesOut:
    """By their enrolment, one page of them. Raises NotFound, Invalid."""
    get_collection(session, collection)
    where: list[ColumnElement[bool]] = [Face.collection_id == collection]
    if wanted.subject:
        where.append(Face.subject_pk == subjects.get(session, collection, wanted.subject).pk)
    if wanted.role:
        where.append(Face.role == wanted.role)
    faces, following = page(session, Face, Face.pk, limit, token, *where, order=wanted.order)
    return FacesOut(faces=shown(session, faces), next_token=following)


def shown(session: Session, faces: list[Face]) -> list[FaceOut]:
    pks = {f.subject_pk for f in faces}
    subjects = {s.pk: s for s in session.scalars(select(Subject).where(Subject.pk.in_(pks - {None})))}
    return [FaceOut.of(f, subjects.get(f.subject_pk or 0)) for f in faces]


def get(session: Session, collection: str, face_id: str) -> Face:
    """Raises NotFound."""
    face = session.scalar(select(Face).where(Face.collection_id == collection, Face.face_id == face_id))
    if face is None:
        raise NotFound(f"no face {face_id!r} in collection {collection!r}")
    return face


def crop(session: Session, blobs: Blobs, collection: str, face_id: str, kind: CropKind) -> bytes:
    """PNG. Raises NotFound."""
    face = get(session, collection, face_id)
    return blobs.get(collection, Blobs.crop(face.image_id, face.number, kind))


def photo(session: Session, blobs: Blobs, collection: str, face_id: str) -> bytes:
    """As it was uploaded. Raises NotFound."""
    return blobs.get(collection, Blobs.photo(get(session, collection, face_id).image_id))


def change(session: Session, collection: str, face_id: str, patch: FacePatch) -> FaceOut:
    """A change like any other: followers hear of it. Raises NotFound."""
    gallery = pointers.lock_collection(session, collection)
    face = get(session, collection, face_id)
    given = patch.model_fields_set
    if "subject" in given:
        subject = subjects.get_or_create(session, gallery, patch.subject) if patch.subject else None
        face.subject_pk = subject.pk if subject else None
    for name in given & {"role", "external_image_id"}:
        setattr(face, name, getattr(patch, name))
    if "metadata" in given:
        face.attributes = patch.metadata
    gallery.change += 1
    face.change = gallery.change
    session.flush()
    return shown(session, [face])[0]


def remove(session: Session, collection: str, face_id: str) -> None:
    """Its row, labels and embeddings now, its files by a job. Raises NotFound."""
    gallery = pointers.lock_collection(session, collection)
    subjects.erase(session, gallery, Face.pk == get(session, collection, face_id).pk)


def accept(resources: Resources, session: Session, collection: str, path: Path, role: Role, aligned: bool) -> Job:
    """The import of an archive that lies whole on the disk. Raises Invalid, TooLarge, Forbidden, NotFound."""
    uploaded = path.parent == resources.uploads
    if not uploaded:
        path = _allowed(resources, path)
    check_first(path, ArchiveLimits.of(resources.settings))
    get_collection(session, collection)
    message = ImportArchive(
        collection=collection, path=str(path.resolve()), role=role, aligned=aligned, remove_after=uploaded
    )
    return enqueue(session, message)


def _allowed(resources: Resources, path: Path) -> Path:
    """The folder itself, all links followed, if it lies in one that the settings name."""
    roots = [root.resolve() for root in resources.settings.import_roots]
    real = path.resolve()
    if not any(real.is_relative_to(root) for root in roots):
        raise Forbidden(f"{path} is in none of the folders that `import_roots` in the settings names")
    if not real.is_dir():
        raise Invalid(f"{path} is not a folder on the server")
    return real


def media_type(data: bytes) -> str:
    """The media type of a photo, by its bytes."""
    kinds = {b"\xff\xd8": "image/jpeg", b"\x89P": "image/png", b"RI": "image/webp", b"BM": "image/bmp"}
    return kinds.get(data[:2], "application/octet-stream")
