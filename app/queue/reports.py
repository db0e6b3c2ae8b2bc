"""Reports on a collection, each the result of a job, in the order in which they were asked for.

They are numbered, since clocks may be set back.
"""

from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Job
from app.queue.jobs import enqueue, find_highest
from app.queue.messages import ReportMessage

ROWS_PER_READ = 16


def enqueue_report(session: Session, collection: Collection, message: ReportMessage) -> Job:
    """Enqueue a report with the next number."""
    last = find_highest(session, Job.report_number, *_is_report_of(collection, message.kind)) or 0
    return enqueue(session, message.model_copy(update={"number": last + 1}))


def find_last_report(session: Session, collection: Collection, kind: str) -> dict[str, Any] | None:
    """Return the result of the last of these jobs that succeeded; None if there is none, or it was erased."""
    job_id = _find_last_job(session, collection, kind)
    job = None if job_id is None else session.get(Job, job_id)
    return None if job is None or job.result is None or job.result.get("erased") else job.result


def _find_last_job(session: Session, collection: Collection, kind: str) -> str | None:
    """Return the id of the last report that works for this collection, and for no deleted one of its name."""
    succeeded = (*_is_report_of(collection, kind), Job.state == "succeeded")
    newest_first = select(Job.id, Job.body).where(*succeeded).order_by(Job.report_number.desc(), Job.id.desc())
    bound_to = (collection.id, collection.created_at)
    with session.execute(newest_first, execution_options={"yield_per": ROWS_PER_READ}) as rows:
        return next((job for job, body in rows if bound_to in body.get("bound_to", {}).items()), None)


def _is_report_of(collection: Collection, kind: str) -> tuple[ColumnElement[bool], ...]:
    """The conditions of reports of this kind for a collection of this name; they have an index."""
    return Job.collection_id == collection.id, Job.kind == kind, Job.report_number.is_not(None)
