"""Start an examination of a collection, and read the report of the last one."""

from fastapi import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.tables import BUILT_IN_TASK, Subject, now
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

    Findings about people who were deleted since, or who may not be searched for any more, are left out.
    """
    result = find_last_report(session, get_collection(session, collection), ExamineGallery.kind)
    if result is None:
        raise NotFound(f"collection {collection!r} was not examined yet, or too long ago")
    report = ExaminationOut.model_validate(result)
    named = {subject for finding in report.findings for subject in finding.subjects}
    usable = select(Subject.id).where(Subject.collection_id == collection, Subject.id.in_(named), may_be_used(now()))
    unusable = named - set(session.scalars(usable))
    return report.model_copy(update={"findings": [f for f in report.findings if not unusable & set(f.subjects)]})
