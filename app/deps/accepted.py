"""Long work: 202, where its job is to be looked at, and the job itself."""

from datetime import UTC, datetime
from typing import Any, Literal, Self

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from app.db.tables import Job, now
from app.deps import examples

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
QUEUED: dict[str, JsonValue] = {
    "id": examples.JOB,
    "kind": "import",
    "state": "queued",
    "progress": {"done": 0, "total": None, "failed": 0},
    "rate": None,
    "eta_seconds": None,
    "created_at": examples.TIME,
    "started_at": None,
    "finished_at": None,
    "result": None,
    "problem": None,
}
RUNNING: dict[str, JsonValue] = QUEUED | {
    "state": "running",
    "progress": {"done": 1180, "total": 2400, "failed": 20},
    "rate": 40.0,
    "eta_seconds": 30.0,
    "started_at": examples.TIME,
}


class Progress(BaseModel):
    done: int
    total: int | None = Field(description="null as long as nobody knows; done + failed at the end")
    failed: int


class JobOut(BaseModel):
    """Anything that takes long."""

    model_config = ConfigDict(json_schema_extra={"examples": [QUEUED, RUNNING]})
    id: str
    kind: str = Field(description="import, train, evaluate, compare, publish, erase, ...")
    state: State
    progress: Progress
    rate: float | None = Field(description="items a second since it started")
    eta_seconds: float | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    result: dict[str, Any] | None = Field(description="once it has succeeded, by its kind")
    problem: dict[str, Any] | None = Field(description="once it has failed: as the body of an error")

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
