"""List trainings and evaluations with their jobs."""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import InstrumentedAttribute, Session, defer

from app.db.tables import Evaluation, Job, Training
from app.deps.job_response import JobOut
from app.deps.paging import limit_scan, read_page

Run = TypeVar("Run", Training, Evaluation)


def get_job_of_run(session: Session, run: Training | Evaluation) -> JobOut | None:
    """Return the job of a training or evaluation; None if it was deleted."""
    job = session.get(Job, run.job_id) if run.job_id else None
    return JobOut.without_result(job) if job else None


def list_runs(
    session: Session,
    kind: type[Run],
    collection: str | None,
    limit: int,
    next_token: str | None,
    order: Literal["oldest", "newest"] = "oldest",
    unread: Sequence[InstrumentedAttribute[Any]] = (),
) -> tuple[list[tuple[Run, JobOut | None]], str | None]:
    """List one page of trainings or evaluations with their jobs. Raises Busy, or Invalid for a wrong token.

    unread: columns that the caller reads in part; a page is as short as if they were read
    """
    where = [kind.request["collection"].as_string() == collection] if collection else []
    with limit_scan(session, collection):
        rows, token = read_page(
            session, kind, kind.id, limit, next_token, *where, order=order, without=[kind.report], unread=unread
        )
    chosen = select(Job).where(Job.id.in_([r.job_id for r in rows])).options(defer(Job.result))
    jobs = {job.id: JobOut.without_result(job) for job in session.scalars(chosen)}
    return [(row, jobs.get(row.job_id or "")) for row in rows], token
