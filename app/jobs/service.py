from sqlalchemy.orm import Session

from app.db.tables import Job
from app.errors import Conflict, NotFound
from app.queue import queue


def get(session: Session, job_id: str) -> Job:
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound(f"no job {job_id}")
    return job


def cancel(session: Session, job_id: str) -> Job:
    """Raises Conflict where it has ended already."""
    job = get(session, job_id)
    if job.state not in queue.LIVE:
        raise Conflict(f"the job has {job.state}; only a queued or running one can be cancelled")
    queue.cancel(session, job)
    session.flush()  # a refresh would forget what is not written yet
    session.refresh(job)
    return job
