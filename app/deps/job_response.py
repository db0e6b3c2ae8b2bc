"""Jobs as answers show them, and the headers of a 202 that name the job."""

from datetime import UTC, datetime
from typing import Any, Literal, Self

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from app.db import examples
from app.db.tables import Job, now
from app.deps.caller import RANK, Role

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
QUEUED: dict[str, JsonValue] = {
    "id": examples.JOB,
    "kind": "import",
    "collection": examples.COLLECTION,
    "state": "queued",
    "progress": {"done": 0, "total": None, "failed": 0},
    "rate": None,
    "eta_seconds": None,
    "created_at": examples.TIME,
    "started_at": None,
    "finished_at": None,
    "requested_by": None,
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
ENTRY = {name: value for name, value in RUNNING.items() if name != "result"}
RESULT_ROLES: dict[str, Role] = {
    "import": "reader",
    "import-embeddings": "reader",
    "ingest": "reader",
    "fit-first": "reader",
    "publish": "reader",
    "discover-people": "reader",
    "draw-atlas": "reader",
    "sweep": "reader",
    "train": "operator",
    "evaluate": "operator",
    "examine": "operator",
    "forecast": "operator",
    "erase": "operator",
    "compare": "admin",
    "snapshot": "admin",
    "restore": "admin",
}
"""The role that sees the result of a kind of job: that of the route which shows the same."""
OMITTED_MEMBERS: dict[str, str] = {"examine": "findings"}
"""Members of results that a route of their own shows, without people whom nobody may see any more."""
PROBLEM_MEMBERS = ("type", "title", "status", "detail", "code", "retryable", "request_id")


class Progress(BaseModel):
    done: int
    total: int | None = Field(description="null while it is unknown; done + failed at the end")
    failed: int


class JobEntry(BaseModel):
    """A job as lists show it: without its result, which can be large. `GET /v1/jobs/{id}` returns the result."""

    model_config = ConfigDict(json_schema_extra={"examples": [ENTRY]})
    id: str
    kind: str = Field(description="import, train, evaluate, compare, publish, erase, ...")
    collection: str | None = Field(description="the collection that it works on; null: none or several")
    state: State
    progress: Progress
    rate: float | None = Field(description="items per second since it started")
    eta_seconds: float | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    requested_by: str | None = Field(None, description="policy: a training policy started it; null: a caller did")
    problem: dict[str, Any] | None = Field(description="if it failed: the problem, like the body of an error")

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls(**_common_fields(job), problem=_shorten_problem(job))


class JobOut(JobEntry):
    """Long work that a request started."""

    model_config = ConfigDict(json_schema_extra={"examples": [QUEUED, RUNNING]})
    result: dict[str, Any] | None = Field(
        description="if it succeeded: the result, which depends on its kind; null where the key lacks the role for it"
    )

    @classmethod
    def of(cls, job: Job, role: Role = "reader") -> Self:
        """Describe a job for a caller with this role, with its result if the role sees it."""
        if RANK[role] < RANK[RESULT_ROLES[job.kind]]:
            return cls(**_common_fields(job), problem=_shorten_problem(job), result=None)
        return cls(**_common_fields(job), problem=job.problem, result=_shorten_result(job))

    @classmethod
    def without_result(cls, job: Job) -> Self:
        """Describe a job without its result, which is not read."""
        return cls(**_common_fields(job), problem=job.problem, result=None)


def _shorten_result(job: Job) -> dict[str, Any] | None:
    omitted = OMITTED_MEMBERS.get(job.kind)
    return job.result and {name: value for name, value in job.result.items() if name != omitted}


def _shorten_problem(job: Job) -> dict[str, Any] | None:
    return job.problem and {name: value for name, value in job.problem.items() if name in PROBLEM_MEMBERS}


def _common_fields(job: Job) -> dict[str, Any]:
    """Return the fields that entries of lists and whole jobs have in common."""
    rate = eta = None
    if job.started_at and job.done + job.failed:
        rate = (job.done + job.failed) / max(1e-3, (job.finished_at or now()) - job.started_at)
        eta = (job.total - job.done - job.failed) / rate if job.total is not None else None
    return {
        "id": job.id,
        "kind": job.kind,
        "collection": job.body.get("collection"),
        "requested_by": job.body.get("requested_by") or None,
        "state": "running" if job.state == "queued" and job.started_at else job.state,
        "progress": Progress(done=job.done, total=job.total, failed=job.failed),
        "rate": rate and round(rate, 3),
        "eta_seconds": None if eta is None or job.finished_at else round(eta, 1),
        "created_at": _to_datetime(job.created_at),
        "started_at": _to_datetime(job.started_at) if job.started_at else None,
        "finished_at": _to_datetime(job.finished_at) if job.finished_at else None,
    }


def _to_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def point_to_job(response: Response, job: Job) -> None:
    """Set the headers that name the job and ask the client to wait a second before it looks."""
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    response.headers["Retry-After"] = "1"
