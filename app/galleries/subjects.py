"""Look up and create subjects, and name and erase faces: shared by the API slices."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.tables import Collection, Embedding, Face, Label, Removal, Subject
from app.errors import NotFound
from app.queue.jobs import enqueue
from app.queue.messages import Erase

MAX_IMAGES_PER_JOB = 1_000


@dataclass(frozen=True)
class Receipt:
    """How many rows were erased. jobs: the ids of the jobs that delete the files."""

    faces: int
    labels: int
    embeddings: int
    jobs: tuple[str, ...]


def find_subject(session: Session, collection_id: str, subject_id: str) -> Subject | None:
    """Return the subject, or None if there is none."""
    return session.scalar(select(Subject).where(Subject.collection_id == collection_id, Subject.id == subject_id))


def get_subject(session: Session, collection_id: str, subject_id: str) -> Subject:
    """Return the subject. Raises NotFound if there is no such collection or subject."""
    get_collection(session, collection_id)
    subject = find_subject(session, collection_id, subject_id)
    if subject is None:
        raise NotFound(f"no subject {subject_id!r} in collection {collection_id!r}")
    return subject


def get_or_create_subject(session: Session, collection: Collection, subject_id: str) -> Subject:
    """Return the subject, created if it is new. The collection must be locked, so that no two requests create it."""
    subject = find_subject(session, collection.id, subject_id)
    if subject is None:
        subject = Subject(collection_id=collection.id, id=subject_id, external_id=subject_id)
        session.add(subject)
        session.flush()
    return subject


def name_faces(
    session: Session, collection: Collection, subject: Subject | None, *conditions: ColumnElement[bool]
) -> int:
    """Give the faces of a locked collection that meet these conditions to a subject, or to nobody. Returns how many.

    The caller raises the collection's change before.
    """
    faces = update(Face).where(Face.collection_id == collection.id, *conditions)
    named = faces.values(subject_pk=subject.pk if subject else None, change=collection.change)
    return len(session.scalars(named.returning(Face.pk)).all())


def erase_faces(session: Session, collection: Collection, *conditions: ColumnElement[bool]) -> Receipt:
    """Erase the faces of a locked collection that meet these conditions.

    Rows, labels and embeddings are deleted in this transaction, index entries by the followers, files by jobs.
    """
    chosen = (Face.collection_id == collection.id, *conditions)
    faces = session.execute(select(Face.pk, Face.image_id).where(*chosen)).all()
    if not faces:
        return Receipt(0, 0, 0, ())
    pks = select(Face.pk).where(*chosen)
    labels = select(func.count()).where(or_(Label.face_a.in_(pks), Label.face_b.in_(pks)))
    embeddings = select(func.count()).where(Embedding.face_pk.in_(pks))
    counts = session.scalar(labels) or 0, session.scalar(embeddings) or 0
    collection.change += 1
    removals = [{"collection_id": collection.id, "face_pk": pk, "change": collection.change} for pk, _ in faces]
    session.execute(insert(Removal), removals)
    session.execute(delete(Face).where(*chosen))
    images = sorted({image for _, image in faces})
    parts = [tuple(images[i : i + MAX_IMAGES_PER_JOB]) for i in range(0, len(images), MAX_IMAGES_PER_JOB)]
    jobs = [enqueue(session, Erase(collection=collection.id, images=part)).id for part in parts]
    return Receipt(len(faces), *counts, tuple(jobs))
