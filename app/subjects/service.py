"""People: made, changed, merged, erased. All of it under the collection's lock."""

from collections.abc import Sequence

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.tables import Face, Subject
from app.deps.paging import page
from app.errors import Invalid
from app.galleries import subjects
from app.publishing import pointers
from app.subjects.schemas import ErasedOut, SubjectIn, SubjectOut, SubjectsOut


def put(session: Session, collection: str, subject_id: str, body: SubjectIn) -> tuple[SubjectOut, bool]:
    """The subject, and whether it is new. Raises NotFound."""
    gallery = pointers.lock_collection(session, collection)
    new = subjects.find(session, collection, subject_id) is None
    subject = subjects.get_or_create(session, gallery, subject_id)
    return _changed(session, subject, body), new


def change(session: Session, collection: str, subject_id: str, body: SubjectIn) -> SubjectOut:
    """Raises NotFound."""
    pointers.lock_collection(session, collection)
    return _changed(session, subjects.get(session, collection, subject_id), body)


def _changed(session: Session, subject: Subject, body: SubjectIn) -> SubjectOut:
    given = body.model_fields_set
    for name in given & {"external_id", "consent"}:
        setattr(subject, name, getattr(body, name))
    if "metadata" in given:
        subject.attributes = body.metadata
    if "retain_until" in given:
        subject.retain_until = body.retain_until.timestamp() if body.retain_until else None
    session.flush()
    return shown(session, [subject])[0]


def listed(session: Session, collection: str, limit: int, token: str | None) -> SubjectsOut:
    """By id. Raises NotFound."""
    get_collection(session, collection)
    rows, following = page(session, Subject, Subject.id, limit, token, Subject.collection_id == collection)
    return SubjectsOut(subjects=shown(session, rows), next_token=following)


def shown(session: Session, subjects: Sequence[Subject]) -> list[SubjectOut]:
    pks = [s.pk for s in subjects]
    counted = select(Face.subject_pk, func.count()).where(Face.subject_pk.in_(pks)).group_by(Face.subject_pk)
    counts = dict(session.execute(counted).all())
    return [SubjectOut.of(s, counts.get(s.pk, 0)) for s in subjects]


def merge(session: Session, collection: str, subject_id: str, into: str) -> SubjectOut:
    """One person under two names becomes one: the faces move, the other name goes. Raises NotFound, Invalid."""
    gallery = pointers.lock_collection(session, collection)
    leaving, staying = subjects.get(session, collection, subject_id), subjects.get(session, collection, into)
    if leaving.pk == staying.pk:
        raise Invalid("a subject cannot be merged into itself")
    gallery.change += 1
    moved = update(Face).where(Face.subject_pk == leaving.pk).values(subject_pk=staying.pk, change=gallery.change)
    session.execute(moved)
    staying.attributes = leaving.attributes | staying.attributes
    session.delete(leaving)
    session.flush()
    return shown(session, [staying])[0]


def remove(session: Session, collection: str, subject_id: str) -> ErasedOut:
    """The subject with all its faces. Raises NotFound."""
    gallery = pointers.lock_collection(session, collection)
    subject = subjects.get(session, collection, subject_id)
    receipt = subjects.erase(session, gallery, Face.subject_pk == subject.pk)
    session.delete(subject)
    session.flush()
    return ErasedOut(
        subject=subject_id,
        faces=receipt.faces,
        labels=receipt.labels,
        embeddings=receipt.embeddings,
        jobs=[f"/v1/jobs/{job}" for job in receipt.jobs],
    )
