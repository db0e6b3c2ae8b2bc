"""Trainings and evaluations: what was asked of a job, kept with what came of it."""

from typing import Literal, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Evaluation, Job, Training
from app.deps.caller import Caller
from app.deps.job_response import JobOut
from app.deps.paging import page

Run = TypeVar("Run", Training, Evaluation)


def job_of(session: Session, run: Training | Evaluation) -> JobOut | None:
    job = session.get(Job, run.job_id) if run.job_id else None
    return JobOut.of(job) if job else None


def listed(
    session: Session,
    kind: type[Run],
    caller: Caller,
    collection: str | None,
    limit: int,
    next_token: str | None,
    order: Literal["oldest", "newest"] = "oldest",
) -> tuple[list[tuple[Run, JobOut | None]], str | None]:
    """With their jobs; a bound key sees those of its collections alone."""
    collection_id = kind.request["collection"].as_string()
    where = [collection_id == collection] if collection else []
    where += [collection_id.in_(caller.collections)] if caller.collections else []
    rows, token = page(session, kind, kind.id, limit, next_token, *where, order=order)
    jobs = {j.id: JobOut.of(j) for j in session.scalars(select(Job).where(Job.id.in_([r.job_id for r in rows])))}
    return [(row, jobs.get(row.job_id or "")) for row in rows], token
