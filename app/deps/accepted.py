"""Long work: 202, where its job is to be looked at, and the job itself."""

from datetime import UTC, datetime
from typing import Any, Literal, Self

from fastapi import Response
from pydantic import BaseModel, Field

from app.db.tables import Job, now

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class Progress(BaseModel):
    done: int
    total: int | None
    failed: int


class JobOut(BaseModel):
    """Anything that takes long."""

    id: str
    kind: str
    state: State
    progress: Progress
    rate: float | None = Field(description="items a second since it started")
    eta_seconds: float | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    result: dict[str, Any] | None
    problem: dict[str, Any] | None

    @classmethod
    def of(cls, job: Job) -> Self:
        state = "running" if job.state == "queued" and job.started_at else job.state
        rate = eta = None
        if job.started_at and job.done + job.failed:
            rate = (job.done + job.failed) / max(1e-3, (job.finished_at or now()) - job.started_at)
            eta = (job.total - job.done - job.failed) / rate if job.total is not None else None
        return cls(
            id=job.id,
            kind=job.kind,
            state=state,
            progress=Progress(done=job.done, total=job.total, failed=job.failed),
            rate=rate and round(rate, 3),
            eta_seconds=None if eta is None or job.finished_at else round(eta, 1),
            created_at=_moment(job.created_at),
            started_at=_moment(job.started_at) if job.started_at else None,
            finished_at=_moment(job.finished_at) if job.finished_at else None,
            result=job.result,
            problem=job.problem,
        )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def accepted(response: Response, job: Job) -> None:
    """Tells where the job is; it is worth a look in a second."""
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    response.headers["Retry-After"] = "1"
