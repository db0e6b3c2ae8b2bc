"""Look up and create subjects, and name and erase faces: shared by the API slices."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, delete, exists, insert, literal, or_, select, update
from sqlalchemy.orm import Session, undefer

from app.db.lookups import get_collection
from app.db.session import large_cache
from app.db.subject_ids import list_spellings
from app.db.tables import Collection, Deployment, Face, Removal, StoredCompensation, Subject
from app.errors import NotFound
from app.galleries.erasures import is_called, record_erasure
from app.galleries.measurements import forget_corrections


@dataclass(frozen=True)
class Receipt:
    """How many rows were erased.

    erasure: the id of the erasure, empty if there was nothing to erase; jobs: the ids of the jobs that complete it
    """

    faces: int
    labels: int
    embeddings: int
    coordinates: int
    erasure: str
    jobs: tuple[str, ...]


def find_subject(session: Session, collection_id: str, subject_id: str) -> Subject | None:
    """Return the subject, or None if there is none. One whose id is composed otherwise is it, too."""
    spellings = list_spellings(subject_id)
    chosen = select(Subject).where(Subject.collection_id == collection_id, Subject.id.in_(spellings))
    return min(session.scalars(chosen), key=lambda subject: spellings.index(subject.id), default=None)


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
    collection.have_labels_reread()
    named = faces.values(subject_pk=subject.pk if subject else None, change=collection.change)
    return len(session.scalars(named.returning(Face.pk)).all())


def erase_subject(session: Session, collection: Collection, subject: Subject) -> Receipt:
    """Erase a subject of a locked collection with all its faces."""
    receipt = _erase(session, collection, "subject", (Face.subject_pk == subject.pk,), subject)
    session.delete(subject)
    session.flush()
    return receipt


def erase_faces(session: Session, collection: Collection, *conditions: ColumnElement[bool]) -> Receipt:
    """Erase the faces of a locked collection that meet these conditions.

    Rows, labels, embeddings and coordinates are deleted in this transaction, index entries by the followers, and all
    other traces by a job.
    """
    return _erase(session, collection, "face", conditions)


def _erase(
    session: Session,
    collection: Collection,
    target: str,
    conditions: tuple[ColumnElement[bool], ...],
    subject: Subject | None = None,
) -> Receipt:
    chosen = (Face.collection_id == collection.id, *conditions)
    has_faces = session.scalar(select(Face.pk).where(*chosen).limit(1)) is not None
    if not has_faces and subject is None:
        return Receipt(0, 0, 0, 0, "", ())
    collection.change += 1
    collection.have_labels_reread()
    if subject is not None:
        _take_merged_names(session, subject)
    erasure, job = record_erasure(session, collection, target, chosen, subject)
    if has_faces:
        removed = select(literal(collection.id), Face.pk, literal(collection.change)).where(*chosen)
        session.execute(insert(Removal).from_select(["collection_id", "face_pk", "change"], removed))
        with large_cache(session):
            session.execute(delete(Face).where(*chosen), execution_options={"synchronize_session": False})
        _forget_unrenewed_corrections(session, collection)
    return Receipt(**erasure.contents["removed"], erasure=erasure.id, jobs=(job,))


def _take_merged_names(session: Session, subject: Subject) -> None:
    """Have a subject that is erased, and nobody else, record who was merged into others under one of its names.

    That is itself, before a merge that was undone, or somebody who had its id before.
    """
    names = _list_names(subject)
    entries = drop_merged(
        session, subject.collection_id, lambda merged: is_called(merged, names), Subject.pk != subject.pk
    )
    if entries:
        subject.merged_subjects = [*subject.merged_subjects, *entries]


def _list_names(subject: Subject) -> list[str]:
    return list(filter(None, (subject.id, subject.external_id)))


def drop_merged(
    session: Session, collection: str, is_dropped: Callable[[dict[str, Any]], bool], *conditions: ColumnElement[bool]
) -> list[dict[str, Any]]:
    """Drop the merged subjects for which this is true from all subjects that record them, and return them."""
    chosen = select(Subject).where(Subject.collection_id == collection, _records_merged(), *conditions)
    dropped: list[dict[str, Any]] = []
    for subject in session.scalars(chosen.options(undefer(Subject.merged_subjects))):
        kept = [merged for merged in subject.merged_subjects if not is_dropped(merged)]
        if len(kept) < len(subject.merged_subjects):
            dropped += [merged for merged in subject.merged_subjects if is_dropped(merged)]
            subject.merged_subjects = kept
    return dropped


def list_merged(session: Session, collection: str, *conditions: ColumnElement[bool]) -> list[dict[str, Any]]:
    """List who was merged into the subjects of a collection: see `Subject.merged_subjects`.

    conditions: which of these subjects
    """
    records = select(Subject.merged_subjects).where(Subject.collection_id == collection, _records_merged(), *conditions)
    return [merged for record in session.scalars(records) for merged in record]


def count_namesakes(session: Session, subject: Subject) -> int:
    """Count the merged subjects of the collection that were known by the id or the external id of a subject.

    The erasure of somebody of that name erases all of them: see `_take_merged_names`.
    """
    names = _list_names(subject)
    recorded = cast(Subject.merged_subjects, Text)
    quoted = {json.dumps(spelling) for name in names for spelling in list_spellings(name)}
    may_record = or_(*(recorded.contains(name, autoescape=True) for name in sorted(quoted)))
    return sum(is_called(merged, names) for merged in list_merged(session, subject.collection_id, may_record))


def _records_merged() -> ColumnElement[bool]:
    return cast(Subject.merged_subjects, Text) != "[]"


def _forget_unrenewed_corrections(session: Session, collection: Collection) -> None:
    """Empty the source compensations of all models but the champions: only those of champions are measured again."""
    is_champion = exists().where(
        Deployment.collection_id == StoredCompensation.collection_id,
        Deployment.task == StoredCompensation.task,
        Deployment.champion == StoredCompensation.model_id,
    )
    forget_corrections(session, collection.id, ~is_champion)
