"""Subjects and the erasing of faces: what the slices of faces and of subjects share."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, func, insert, or_, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Embedding, Face, Label, Removal, Subject
from app.errors import NotFound
from app.queue.jobs import enqueue
from app.queue.messages import Erase

IMAGES = 1_000  # of one job


@dataclass(frozen=True)
class Receipt:
    """What was erased. jobs: those that remove the files."""

    faces: int
    labels: int
    embeddings: int
    jobs: tuple[str, ...]


def collection(session: Session, collection_id: str) -> Collection:
    """Raises NotFound."""
    found = session.get(Collection, collection_id)
    if found is None:
        raise NotFound(f"no collection {collection_id!r}")
    return found


def find(session: Session, collection_id: str, subject_id: str) -> Subject | None:
    return session.scalar(select(Subject).where(Subject.collection_id == collection_id, Subject.id == subject_id))


def get(session: Session, collection_id: str, subject_id: str) -> Subject:
    """Raises NotFound."""
    collection(session, collection_id)
    found = find(session, collection_id, subject_id)
    if found is None:
        raise NotFound(f"no subject {subject_id!r} in collection {collection_id!r}")
    return found


def found_or_made(session: Session, place: Collection, subject_id: str) -> Subject:
    """The collection is locked, so that two requests make one subject."""
    found = find(session, place.id, subject_id)
    if found is None:
        found = Subject(collection_id=place.id, id=subject_id, external_id=subject_id)
        session.add(found)
        session.flush()
    return found


def erase(session: Session, place: Collection, *which: ColumnElement[bool]) -> Receipt:
    """Those faces of a locked collection: rows, labels and embeddings now, index entries when the followers look,
    files by the jobs that it writes down."""
    mine = (Face.collection_id == place.id, *which)
    faces = session.execute(select(Face.pk, Face.image_id).where(*mine)).all()
    if not faces:
        return Receipt(0, 0, 0, ())
    pks = select(Face.pk).where(*mine)
    labels = select(func.count()).where(or_(Label.face_a.in_(pks), Label.face_b.in_(pks)))
    embeddings = select(func.count()).where(Embedding.face_pk.in_(pks))
    counts = session.scalar(labels) or 0, session.scalar(embeddings) or 0
    place.change += 1
    gone = [{"collection_id": place.id, "face_pk": pk, "change": place.change} for pk, _ in faces]
    session.execute(insert(Removal), gone)
    session.execute(delete(Face).where(*mine))
    images = sorted({image for _, image in faces})
    parts = [tuple(images[i : i + IMAGES]) for i in range(0, len(images), IMAGES)]
    jobs = [enqueue(session, Erase(collection=place.id, images=part)).id for part in parts]
    return Receipt(len(faces), *counts, tuple(jobs))
