"""List, read, watch and cancel jobs."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from sse_starlette import EventSourceResponse

from app.db import examples
from app.db.field_types import Word
from app.deps import CallerDep, Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.headers import describe_headers
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import RUNNING, JobEntry, JobOut
from app.deps.job_response import State as JobState
from app.deps.paging import Order
from app.deps.problems import declare_problems
from app.deps.roles import OPERATOR, READER
from app.deps.scopes import JOB, ROWS
from app.jobs import events, service
from app.jobs.schemas import ItemOut, ItemsOut, JobsOut

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=AnswerRoute)
JobId = Annotated[Word, Path(description="a job's id", examples=[examples.JOB])]
State = Annotated[
    Word | None, Query(alias="state", description="only items in this state: queued, done, failed", examples=["failed"])
]
OfCollection = Annotated[Word | None, Query(description="only jobs of this collection", examples=[examples.COLLECTION])]
OfKind = Annotated[
    Word | None, Query(description="only jobs of this kind: import, train, publish, ...", examples=["import"])
]
InState = Annotated[
    Sequence[JobState], Query(description="only jobs in this state; may be repeated", examples=[["queued", "running"]])
]
JOB_EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/JobOut"},
        }
    },
}
"""One event: before version 3.2, OpenAPI has no schema for a whole stream."""
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "an event at each change",
        "content": {"text/event-stream": {"schema": JOB_EVENT, "example": {"data": json.dumps(RUNNING)}}},
    }
}
SHOWN: dict[int | str, dict[str, Any]] = {200: describe_headers("X-Change-Number")}


@router.get("", summary="List jobs", openapi_extra=READER | ROWS)
def list_jobs(
    session: ReadDep, collection: OfCollection = None, kind: OfKind = None, state: InState = (),
    order: Order = "newest", limit: Limit = 100, next_token: NextToken = None,
) -> JobsOut:  # fmt: skip
    """Jobs without their results, the newest first; `GET /v1/jobs/{id}` returns the result. The parts of an import are
    not listed. A key that is bound to collections sees only their jobs."""
    job_filter = service.JobFilter(collection, kind, tuple(state), order)
    rows, token = service.list_jobs(session, job_filter, limit, next_token)
    return JobsOut(jobs=[JobEntry.of(r) for r in rows], next_token=token)


@router.get("/{job_id}", summary="Look at a job", responses=SHOWN, openapi_extra=READER | JOB)
def get_job(job_id: JobId, session: ReadDep, caller: CallerDep, response: Response) -> JobOut:
    """The state, progress, rate and remaining time of a job and, at the end, its result or problem. The result and the
    reasons of a failure are shown to keys with the role of the route that shows the same: a training's and an
    examination's to operators, a comparison's and a snapshot's to administrators. `X-Change-Number` of a job that has
    ended is the last change of its collection: a search that sends it sees all that the job did."""
    job = service.get_job(session, job_id)
    response.headers.update(service.tell_change(session, job))
    return JobOut.of(job, caller.role)


@router.get("/{job_id}/items", summary="The items of a job", openapi_extra=READER | JOB)
def list_items(
    job_id: JobId, session: ReadDep, limit: Limit = 100, next_token: NextToken = None, state: State = None
) -> ItemsOut:
    """The photos of an import, each with its faces, or with the reasons why it has none."""
    rows, token = service.list_items(session, job_id, state, limit, next_token)
    return ItemsOut(items=[ItemOut.of(r) for r in rows], next_token=token)


@router.get(
    "/{job_id}/events",
    summary="Watch a job",
    openapi_extra=READER | JOB,
    response_class=EventSourceResponse,
    responses=EVENTS,
)
def watch_job(job_id: JobId, session: ReadDep, resources: ResourcesDep, caller: CallerDep) -> EventSourceResponse:
    """Server-sent events: `data: {job}` at each change, until the job has ended, or the key is revoked, or
    the secret that was sent is no longer accepted. Comments keep an idle stream open."""
    service.get_job(session, job_id)
    watch = events.Watch(job_id, caller.digest, caller.valid_until, caller.role)
    return EventSourceResponse(events.stream_job(resources, watch), sep="\n")


@router.post(
    "/{job_id}:cancel",
    summary="Cancel a job",
    openapi_extra={**OPERATOR, **JOB, **declare_problems((409, "ResourceInUse"))} | audit_as("job.cancel"),
)
def cancel_job(job_id: JobId, session: WriteDep, caller: CallerDep) -> JobOut:
    """A queued job ends at once, a running one at its next step. What it has done so far is kept. The job of an erasure
    cannot be cancelled (409)."""
    return JobOut.of(service.cancel_job(session, job_id), caller.role)
