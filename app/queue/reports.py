"""Reports on a collection, each the result of a job, in the order in which they were asked for.

They are numbered, since clocks may be set back.
"""

from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Job
from app.queue.jobs import enqueue
from app.queue.messages import ReportMessage


def enqueue_report(session: Session, collection: Collection, message: ReportMessage) -> Job:
    """Enqueue a report with the next number."""
    last, _ = max(_list_jobs(session, collection, message.kind), default=(0, ""))
    return enqueue(session, message.model_copy(update={"number": last + 1}))


def find_last_report(session: Session, collection: Collection, kind: str) -> dict[str, Any] | None:
    """Return the result of the last of these jobs that succeeded; None if there is none, or it was erased."""
    _, job_id = max(_list_jobs(session, collection, kind, Job.state == "succeeded"), default=(0, ""))
    job = session.get(Job, job_id)
    return None if job is None or job.result is None or job.result.get("erased") else job.result


def _list_jobs(
    session: Session, collection: Collection, kind: str, *where: ColumnElement[bool]
) -> list[tuple[int, str]]:
    """List the numbers and ids of the jobs that work for this collection, and for no deleted one of its name."""
    of_name = (Job.kind == kind, Job.body["collection"].as_string() == collection.id)
    rows = session.execute(select(Job.id, Job.body).where(*of_name, *where)).all()
    bound_to = (collection.id, collection.created_at)
    return [(body.get("number", 0), job) for job, body in rows if bound_to in body.get("bound_to", {}).items()]
