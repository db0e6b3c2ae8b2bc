"""Enrol, list, change and delete faces, and accept archives for import."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.db.field_types import Role
from app.db.lookups import get_collection, get_face, make_not_found
from app.db.session import reading, writing
from app.db.tables import Collection, Face, Job, Subject
from app.db.visibility import ALL_ROWS
from app.deps.caller import Caller
from app.deps.key_secrets import check_still_opened
from app.deps.paging import limit_scan, read_page
from app.enrolment.archives.formats import recognise_format
from app.enrolment.photo_analysis import EnrolmentRequest, analyse_photo
from app.enrolment.preparation import prepare_photos
from app.enrolment.store import EnrolmentOutcome, enrol_photos
from app.enrolment.target import EnrolmentTarget
from app.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from app.faces.schemas import EnrolledOut, FaceOut, FacePatch, FacesOut, UnindexedOut
from app.faces.streaming import ReceivedImport
from app.galleries import subjects
from app.galleries.external_descriptors import check_takes_photos
from app.galleries.retention import check_enrolment, check_release, check_unnaming, refuse_enrolment
from app.publishing import pointers
from app.queue.jobs import enqueue
from app.queue.messages import Erase, ImportArchive
from app.resources import Resources
from app.serving.engine import Engine
from app.serving.limits.photo_failures import report_photo_failure
from app.storage.blob_store import Blobs
from ml.types import CropKind


def enrol_photo(
    engine: Engine, caller: Caller, collection: str, data: bytes, request: EnrolmentRequest
) -> tuple[EnrolledOut, bool]:
    """Enrol the faces of one photo. Returns them, and whether any of them is new.

    Raises NotFound, Conflict (enrolled under another subject or role, not allowed, or the person or the collection was
    deleted meanwhile), Unauthenticated (the key was revoked meanwhile), Busy, PhotoFailed, ml.Unreadable.
    """
    resources = engine.resources
    with reading(resources.database) as session:
        check_takes_photos(session, get_collection(session, collection))
        target = EnrolmentTarget.read(session, collection, request.subject)
    with engine.admit_photo(data):
        photo = analyse_photo(resources, data, request)
        with report_photo_failure("embed"):
            prepared = prepare_photos(resources, collection, [photo])
    with reading(resources.database) as session:
        target.check(session)

    def check(session: Session, _: object) -> None:
        target.check(session)
        check_still_opened(session, caller)

    try:
        [outcome] = enrol_photos(resources, collection, [photo], prepared, check)
    except (Conflict, NotFound, Unauthenticated) as error:
        is_gone = isinstance(error, NotFound)
        with writing(resources.database) as session:
            enqueue(session, Erase(collection=collection, whole=is_gone, images=(photo.image_id,)))
        raise
    return _describe_outcome(outcome), outcome.new


def name_enrolled_face(enrolled: EnrolledOut) -> str | None:
    """Name the first of the faces for the audit log; None if there is none."""
    return next((f"face:{record.face_id}" for record in enrolled.face_records), None)


def _describe_outcome(outcome: EnrolmentOutcome) -> EnrolledOut:
    if outcome.refusal is not None:
        raise refuse_enrolment(outcome.photo.request.subject or "", outcome.refusal)
    if outcome.conflict is not None:
        raise Conflict(
            "this photo is enrolled under another subject or role; change or delete that face first",
            code="DuplicateWithOtherSubject",
            face_id=outcome.conflict.face_id,
        )
    return EnrolledOut(
        face_records=[FaceOut.of(face, subject) for face, subject in outcome.faces],
        unindexed_faces=[UnindexedOut.of(face) for face in outcome.photo.unindexed],
    )


class FaceFilter(NamedTuple):
    """Which faces to list, and in which order. An empty subject, role or source does not filter."""

    subject: str | None
    role: str | None
    source: str | None
    order: Literal["oldest", "newest"] = "oldest"


def list_faces(session: Session, collection: str, face_filter: FaceFilter, limit: int, token: str | None) -> FacesOut:
    """List one page of faces in the order of their enrolment. Raises NotFound, Busy, or Invalid for a wrong token."""
    with limit_scan(session, face_filter.role):
        get_collection(session, collection)
        where = _iterate_conditions(session, collection, face_filter)
        faces, next_token = read_page(session, Face, Face.pk, limit, token, *where, order=face_filter.order)
        return FacesOut(faces=describe_faces(session, faces), next_token=next_token)


def _iterate_conditions(session: Session, collection: str, face_filter: FaceFilter) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of a filter. Raises NotFound."""
    yield Face.collection_id == collection
    if face_filter.subject:
        yield Face.subject_pk == subjects.get_subject(session, collection, face_filter.subject).pk
    if face_filter.role:
        yield Face.role == face_filter.role
    if face_filter.source:
        yield Face.source == face_filter.source


def describe_faces(session: Session, faces: list[Face]) -> list[FaceOut]:
    """Describe faces, each with its subject."""
    pks = {f.subject_pk for f in faces}
    named = select(Subject).where(Subject.pk.in_(pks - {None}))
    # whoever sees a face sees its subject; restricted to their collection, SQLite would read all subjects of it
    subjects = {s.pk: s for s in session.scalars(named, execution_options=ALL_ROWS)}
    return [FaceOut.of(f, subjects.get(f.subject_pk or 0)) for f in faces]


def read_crop(session: Session, blobs: Blobs, collection: str, face_id: str, kind: CropKind) -> bytes:
    """Return the crop as PNG. Raises NotFound, AppError (StoredFileDamaged)."""
    face = get_face(session, collection, face_id)
    return blobs.get_crop(collection, face.image_id, face.number, kind)


def read_photo(session: Session, blobs: Blobs, collection: str, face_id: str) -> bytes:
    """Return the photo as it was uploaded. Raises NotFound, AppError (StoredFileDamaged)."""
    return blobs.get_photo(collection, get_face(session, collection, face_id).image_id)


def change_face(session: Session, collection: str, face_id: str, patch: FacePatch, *, needs_consent: bool) -> FaceOut:
    """Change the fields that the patch states. Followers apply the change to their indexes.

    needs_consent: whether a subject that is given needs recorded consent
    Raises NotFound; Conflict if the given subject, or the one that the face has, may not be used any more, or if a face
    whose subject has a `retain_until` is given to nobody.
    """
    gallery = pointers.lock_collection(session, collection)
    face = get_face(session, collection, face_id)
    given = patch.model_fields_set
    gallery.change += 1
    gallery.have_labels_reread()
    if "subject" in given:
        _name_face(session, gallery, face, patch.subject, needs_consent)
    for name in given & {"role", "external_image_id", "source"}:
        setattr(face, name, getattr(patch, name))
    if "metadata" in given:
        face.attributes = patch.metadata
    face.change = gallery.change
    session.flush()
    return describe_faces(session, [face])[0]


def _name_face(session: Session, gallery: Collection, face: Face, subject_id: str | None, needs_consent: bool) -> None:
    """Give a face to a subject, which is created if it is new, or to nobody. Raises Conflict."""
    subject = subjects.get_or_create_subject(session, gallery, subject_id) if subject_id else None
    if subject is not None:
        check_enrolment(subject, needs_consent)
    if face.subject_pk is not None:
        present = session.get_one(Subject, face.subject_pk)
        check_release(present)
        if subject is None:
            check_unnaming(present)
    subjects.name_faces(session, gallery, subject, Face.pk == face.pk)


def delete_face(session: Session, collection: str, face_id: str) -> str:
    """Delete the face with its labels and embeddings, and enqueue the job that erases its other traces.

    Returns the id of the erasure. Raises NotFound.
    """
    gallery = pointers.lock_collection(session, collection)
    return subjects.erase_faces(session, gallery, Face.pk == get_face(session, collection, face_id).pk).erasure


class ImportOptions(NamedTuple):
    """How to enrol the photos of an archive. source: of photos for which the manifest states none"""

    role: Role
    aligned: bool
    source: str | None


def accept_import(
    resources: Resources, session: Session, collection: str, received: ReceivedImport, options: ImportOptions
) -> Job:
    """Enqueue the import of an uploaded archive, of which only the first bytes are read, or of a folder of the server.

    Raises Invalid, Forbidden (a folder outside of `import_roots`), NotFound, also if the collection was deleted during
    the upload and another one has its name.
    """
    path = received.path
    is_uploaded = path.parent == resources.uploads
    if is_uploaded:
        recognise_format(path)
    else:
        path = _resolve_allowed_folder(resources, path)
    if get_collection(session, collection).created_at != received.collection_created_at:
        raise make_not_found("collection", collection)
    message = ImportArchive(
        collection=collection, path=str(path.resolve()), remove_after=is_uploaded, **options._asdict()
    )
    return enqueue(session, message)


def _resolve_allowed_folder(resources: Resources, path: Path) -> Path:
    """Return the folder with all links resolved. Raises Forbidden if it is outside of `import_roots`, Invalid."""
    roots = [root.resolve() for root in resources.settings.import_roots]
    try:
        real = path.resolve()
        if not any(real.is_relative_to(root) for root in roots):
            raise Forbidden(f"{path} is not inside any folder that the setting `import_roots` names")
        if real.is_dir():
            return real
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, links in a circle, odd characters
        raise Invalid(f"{str(path)!r} is not the path of a folder on the server") from error
    raise Invalid(f"{path} is not a folder on the server")


def guess_media_type(data: bytes) -> str:
    """Return the media type of a photo, recognised by its first two bytes."""
    kinds = {b"\xff\xd8": "image/jpeg", b"\x89P": "image/png", b"RI": "image/webp", b"BM": "image/bmp"}
    return kinds.get(data[:2], "application/octet-stream")
