"""List, read and cancel jobs."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from app.db import lookups
from app.db.tables import Collection, Job, JobItem
from app.deps.job_response import State
from app.deps.paging import limit_scan, read_page
from app.deps.server import change_number
from app.errors import Conflict
from app.queue import jobs
from app.queue.messages import Erase
from app.storage.audit_log.notes import note_audited


class JobFilter(NamedTuple):
    """Which jobs to list, and in which order. states: empty means all."""

    collection: str | None = None
    kind: str | None = None
    states: tuple[State, ...] = ()
    order: Literal["oldest", "newest"] = "newest"


def list_jobs(
    session: Session, job_filter: JobFilter, limit: int, next_token: str | None
) -> tuple[list[Job], str | None]:
    """List one page of the jobs that are not parts of others, without their results. Raises Invalid, Busy."""
    where, order = [Job.parent_id.is_(None), *_iterate_conditions(job_filter)], job_filter.order
    with limit_scan(session, job_filter.collection, job_filter.kind, job_filter.states):
        return read_page(session, Job, Job.id, limit, next_token, *where, order=order, without=[Job.result])


def _iterate_conditions(job_filter: JobFilter) -> Iterator[ColumnElement[bool]]:
    if job_filter.collection:
        yield Job.body["collection"].as_string() == job_filter.collection
    if job_filter.kind:
        yield Job.kind == job_filter.kind
    if job_filter.states:
        yield or_(*(_is_in(state) for state in job_filter.states))


def _is_in(state: State) -> ColumnElement[bool]:
    """Compare with the state that answers show: a job that was put back after its start counts as running."""
    put_back = and_(Job.state == "queued", Job.started_at.is_not(None))
    if state == "running":
        return or_(Job.state == "running", put_back)
    if state == "queued":
        return and_(Job.state == "queued", Job.started_at.is_(None))
    return Job.state == state


def get_job(session: Session, job_id: str) -> Job:
    """Return the job. Raises NotFound."""
    job: Job = lookups.get_row(session, "job", job_id)
    return job


def list_items(
    session: Session, job_id: str, state: str | None, limit: int, next_token: str | None
) -> tuple[list[JobItem], str | None]:
    """List one page of the items of a job. state: None means all. Raises NotFound, Invalid, Busy."""
    with limit_scan(session, state):
        get_job(session, job_id)
        where = [JobItem.job_id == job_id, *([JobItem.state == state] if state else [])]
        return read_page(session, JobItem, JobItem.number, limit, next_token, *where)


def tell_change(session: Session, job: Job) -> dict[str, str]:
    """Return `X-Change-Number` with the last change of the collection of a job that has ended; else nothing."""
    if job.finished_at is None or "collection" not in job.body:
        return {}
    is_of_job = (Collection.id == job.body["collection"], ~Collection.is_deleted)
    change = session.scalar(select(Collection.change).where(*is_of_job))
    return {} if change is None else {change_number.NAME: str(change)}


def cancel_job(session: Session, job_id: str) -> Job:
    """Cancel a job. Raises NotFound, or Conflict if it has ended already or is an erasure's."""
    job = get_job(session, job_id)
    note_audited(session, {job.body.get("collection"), *job.body.get("bound_to", {})})
    if job.state not in jobs.LIVE_STATES:
        raise Conflict(f"the job has {job.state}; only a queued or running one can be cancelled")
    if job.kind == Erase.kind:
        raise Conflict("what was deleted is being erased, and that cannot be cancelled")
    jobs.cancel(session, job)
    session.flush()  # otherwise the refresh would discard the changes
    session.refresh(job)
    return job
