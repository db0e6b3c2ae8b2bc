"""Create, change, merge and delete subjects, under the collection's lock."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.db.field_types import check_metadata
from app.db.lookups import get_collection
from app.db.tables import Collection, Face, Subject
from app.db.visibility import ALL_ROWS
from app.deps.paging import read_page
from app.errors import Invalid
from app.galleries import subjects
from app.galleries.retention import check_enrolment, check_release, find_end_of_use
from app.learning.refit import list_models_that_learned
from app.publishing import pointers
from app.queue.moments import find_latest_moment
from app.subjects.schemas import ErasedOut, SubjectIn, SubjectOut, SubjectsOut

MAX_MERGED_SUBJECTS = 100
"""Subjects that one may record as merged into it, and those of one id or external id that all subjects of a collection
may record together. An erasure looks for the names of each in all that is stored."""


def put_subject(session: Session, collection: str, subject_id: str, body: SubjectIn) -> tuple[SubjectOut, bool]:
    """Create or change a subject. Returns it, and whether it is new. Raises NotFound if there is no such collection."""
    locked = pointers.lock_collection(session, collection)
    new = subjects.find_subject(session, collection, subject_id) is None
    subject = subjects.get_or_create_subject(session, locked, subject_id)
    return _apply_changes(session, locked, subject, body), new


def change_subject(session: Session, collection: str, subject_id: str, body: SubjectIn) -> SubjectOut:
    """Change the fields that the body states. Raises NotFound."""
    locked = pointers.lock_collection(session, collection)
    return _apply_changes(session, locked, subjects.get_subject(session, collection, subject_id), body)


def _apply_changes(session: Session, locked: Collection, subject: Subject, body: SubjectIn) -> SubjectOut:
    given = body.model_fields_set
    before = (subject.external_id, find_end_of_use(subject.consent, subject.retain_until))
    for name in given & {"external_id", "consent"}:
        setattr(subject, name, getattr(body, name))
    if "metadata" in given:
        subject.attributes = body.metadata
    if "retain_until" in given:
        subject.retain_until = body.retain_until.timestamp() if body.retain_until else None
    if before != (subject.external_id, find_end_of_use(subject.consent, subject.retain_until)):
        locked.change += 1  # so that every follower reads the name anew, and what the labels of the faces mean
        locked.have_labels_reread()
        _change_faces(session, locked, subject)
    session.flush()
    return describe_subjects(session, [subject])[0]


def _change_faces(session: Session, locked: Collection, subject: Subject) -> None:
    """Count all faces of a subject as changed by the collection's last change."""
    session.execute(update(Face).where(Face.subject_pk == subject.pk).values(change=locked.change))


def list_subjects(session: Session, collection: str, limit: int, token: str | None) -> SubjectsOut:
    """List subjects by id, one page of them. Raises NotFound, or Invalid for a wrong token."""
    get_collection(session, collection)
    rows, next_token = read_page(session, Subject, Subject.id, limit, token, Subject.collection_id == collection)
    return SubjectsOut(subjects=describe_subjects(session, rows), next_token=next_token)


def describe_subjects(session: Session, subjects: Sequence[Subject]) -> list[SubjectOut]:
    """Describe subjects, each with the number of its faces."""
    pks = [s.pk for s in subjects]
    counted = select(Face.subject_pk, func.count()).where(Face.subject_pk.in_(pks)).group_by(Face.subject_pk)
    # whoever sees a subject sees its faces; restricted to their collection, SQLite would read all faces of it
    counts = dict(session.execute(counted, execution_options=ALL_ROWS).all())
    return [SubjectOut.of(s, counts.get(s.pk, 0)) for s in subjects]


def merge_subjects(session: Session, collection: str, subject_id: str, into: str, *, needs_consent: bool) -> SubjectOut:
    """Move a subject's faces and metadata to the subject `into`, and delete it. The kept one records who it was.

    The earlier `retain_until` of both holds, and consent that was given to one of them.
    needs_consent: whether the kept subject needs recorded consent
    Raises NotFound, Invalid if both are the same or have too much metadata or too many merged subjects for one, or if
    too many of the id or external id were merged before, or Conflict if the faces of either may not be used any more.
    """
    locked = pointers.lock_collection(session, collection)
    merged = subjects.get_subject(session, collection, subject_id)
    kept = subjects.get_subject(session, collection, into)
    if merged.pk == kept.pk:
        raise Invalid("a subject cannot be merged into itself")
    check_enrolment(kept, needs_consent)
    check_release(merged)
    locked.change += 1
    locked.have_labels_reread()
    faces = update(Face).where(Face.subject_pk == merged.pk)
    session.execute(faces.values(subject_pk=kept.pk, change=locked.change))
    kept.attributes = _merge_metadata(merged, kept)
    kept.consent, retain_until = kept.consent or merged.consent, kept.retain_until
    kept.retain_until = min((u for u in (kept.retain_until, merged.retain_until) if u is not None), default=None)
    if kept.retain_until != retain_until:
        _change_faces(session, locked, kept)
    _absorb(session, merged, kept)
    session.delete(merged)
    session.flush()
    return describe_subjects(session, [kept])[0]


def _absorb(session: Session, merged: Subject, kept: Subject) -> None:
    """Raises Invalid."""
    namesakes = subjects.count_namesakes(session, merged)
    if namesakes >= MAX_MERGED_SUBJECTS:
        raise Invalid(
            f"{namesakes} subjects that were merged in this collection have the id or the external id of "
            f"{merged.id!r}, and at most {MAX_MERGED_SUBJECTS} are allowed: change its external id, if it has this in "
            f"common with others, or give {kept.id!r} its faces one by one, and delete it"
        )
    kept.absorb(merged, find_latest_moment(session))
    if len(kept.merged_subjects) > MAX_MERGED_SUBJECTS:
        raise Invalid(
            f"subject {kept.id!r} would record {len(kept.merged_subjects)} merged subjects, and at most "
            f"{MAX_MERGED_SUBJECTS} are allowed: give it the faces of {merged.id!r} one by one, and delete that subject"
        )


def _merge_metadata(merged: Subject, kept: Subject) -> dict[str, Any]:
    """Raises Invalid."""
    try:
        return check_metadata(merged.attributes | kept.attributes)
    except ValueError as error:
        raise Invalid(f"the metadata of both subjects {error}: change that of one of them first") from error


def delete_subject(session: Session, collection: str, subject_id: str) -> ErasedOut:
    """Delete a subject with all its faces, and count what is deleted. Raises NotFound."""
    locked = pointers.lock_collection(session, collection)
    subject = subjects.get_subject(session, collection, subject_id)
    models = list_models_that_learned(session, locked, subject)
    receipt = subjects.erase_subject(session, locked, subject)
    return ErasedOut(
        subject=subject_id,
        faces=receipt.faces,
        labels=receipt.labels,
        embeddings=receipt.embeddings,
        coordinates=receipt.coordinates,
        jobs=[f"/v1/jobs/{job}" for job in receipt.jobs],
        models=models,
        erasure=f"/v1/erasures/{receipt.erasure}",
    )
