"""Look up and create subjects, and erase faces: shared by the API slices faces and subjects."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, func, insert, or_, select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.tables import Collection, Embedding, Face, Label, Removal, Subject
from app.errors import NotFound
from app.queue.jobs import enqueue
from app.queue.messages import Erase

MAX_IMAGES_PER_JOB = 1_000


@dataclass(frozen=True)
class Receipt:
    """What was erased. jobs: those that remove the files."""

    faces: int
    labels: int
    embeddings: int
    jobs: tuple[str, ...]


def find(session: Session, collection_id: str, subject_id: str) -> Subject | None:
    return session.scalar(select(Subject).where(Subject.collection_id == collection_id, Subject.id == subject_id))


def get(session: Session, collection_id: str, subject_id: str) -> Subject:
    """Raises NotFound."""
    get_collection(session, collection_id)
    subject = find(session, collection_id, subject_id)
    if subject is None:
        raise NotFound(f"no subject {subject_id!r} in collection {collection_id!r}")
    return subject


def get_or_create(session: Session, collection: Collection, subject_id: str) -> Subject:
    """The caller has locked the collection, so that two requests create one subject."""
    subject = find(session, collection.id, subject_id)
    if subject is None:
        subject = Subject(collection_id=collection.id, id=subject_id, external_id=subject_id)
        session.add(subject)
        session.flush()
    return subject


def erase(session: Session, collection: Collection, *conditions: ColumnElement[bool]) -> Receipt:
    """Erase faces of a locked collection that meet these conditions.

    Rows, labels and embeddings go at once, index entries when the followers next look, files by the jobs it enqueues.
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
