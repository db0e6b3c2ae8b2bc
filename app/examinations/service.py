"""Start an examination of a collection, and read the report of the last one."""

from fastapi import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.id_lists import select_ids
from app.db.lookups import get_collection
from app.db.tables import BUILT_IN_TASK, Face, Subject, now
from app.deps.job_response import JobOut, point_to_job
from app.errors import NotFound
from app.examinations.schemas import ExaminationOut
from app.galleries.retention import may_be_used
from app.publishing import pointers
from app.queue.messages import ExamineGallery
from app.queue.reports import enqueue_report, find_last_report


def start_examination(session: Session, collection: str, response: Response) -> JobOut:
    """Enqueue an examination. Raises NotFound."""
    row = get_collection(session, collection)
    pointers.get_deployment(session, collection, BUILT_IN_TASK)
    job = enqueue_report(session, row, ExamineGallery(collection=collection))
    point_to_job(response, job)
    return JobOut.of(job)


def read_report(session: Session, collection: str) -> ExaminationOut:
    """Return the report of the last examination that succeeded. Raises NotFound if there is none.

    Findings about faces or people who were deleted since, or who may not be found any more, are left out.
    """
    result = find_last_report(session, get_collection(session, collection), ExamineGallery.kind)
    if result is None:
        raise NotFound(f"collection {collection!r} was not examined yet, or too long ago")
    report = ExaminationOut.model_validate(result)
    subjects = {subject for finding in report.findings for subject in finding.subjects}
    faces = {face for finding in report.findings for face in finding.faces}
    may_be_shown = may_be_used(now())
    usable = select(Subject.id).where(Subject.collection_id == collection, Subject.id.in_(subjects), may_be_shown)
    shown = select(Face.face_id).outerjoin(Subject, Subject.pk == Face.subject_pk).where(may_be_shown)
    shown = shown.where(Face.collection_id == collection, Face.face_id.in_(select_ids(session, list(faces))))
    shown_faces = set(session.scalars(shown)) if faces else set()
    left_out = subjects - set(session.scalars(usable)) | faces - shown_faces
    findings = [finding for finding in report.findings if left_out.isdisjoint((*finding.subjects, *finding.faces))]
    return report.model_copy(update={"findings": findings})
