from collections.abc import Iterator
from typing import Literal, NamedTuple

from sqlalchemy import ColumnElement, and_, or_
from sqlalchemy.orm import Session, defer

from app.db.tables import Job
from app.deps.caller import Caller
from app.deps.job_response import State
from app.deps.paging import page
from app.errors import Conflict, NotFound
from app.queue import jobs


class Wanted(NamedTuple):
    """Which jobs are listed, and in what order. states: empty means all."""

    collection: str | None = None
    kind: str | None = None
    states: tuple[State, ...] = ()
    order: Literal["oldest", "newest"] = "newest"


def listed(
    session: Session, caller: Caller, wanted: Wanted, limit: int, next_token: str | None
) -> tuple[list[Job], str | None]:
    """One page of the jobs that are no parts of others; a bound key sees those of its collections alone.

    Their results are not read. Raises Invalid.
    """
    where = [Job.parent_id.is_(None), *_conditions(caller, wanted)]
    return page(session, Job, Job.id, limit, next_token, *where, order=wanted.order, options=[defer(Job.result)])


def _conditions(caller: Caller, wanted: Wanted) -> Iterator[ColumnElement[bool]]:
    collection = Job.body["collection"].as_string()
    if caller.collections:
        yield collection.in_(caller.collections)
    if wanted.collection:
        yield collection == wanted.collection
    if wanted.kind:
        yield Job.kind == wanted.kind
    if wanted.states:
        yield or_(*(_is_in(state) for state in wanted.states))


def _is_in(state: State) -> ColumnElement[bool]:
    """As answers show it: a job that was put back after its start counts as running."""
    put_back = and_(Job.state == "queued", Job.started_at.is_not(None))
    if state == "running":
        return or_(Job.state == "running", put_back)
    if state == "queued":
        return and_(Job.state == "queued", Job.started_at.is_(None))
    return Job.state == state


def get(session: Session, job_id: str) -> Job:
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound(f"no job {job_id}")
    return job


def cancel(session: Session, job_id: str) -> Job:
    """Raises Conflict where it has ended already."""
    job = get(session, job_id)
    if job.state not in jobs.LIVE:
        raise Conflict(f"the job has {job.state}; only a queued or running one can be cancelled")
    jobs.cancel(session, job)
    session.flush()  # a refresh would forget what is not written yet
    session.refresh(job)
    return job
