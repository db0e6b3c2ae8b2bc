"""Take snapshots into the home, list and delete them, and restore a collection from one."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from app.db import examples
from app.db.field_types import Word
from app.deps import CallerDep, Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.job_response import JobOut
from app.deps.paging import Order
from app.deps.problems import declare_problems
from app.deps.roles import ADMIN
from app.deps.scopes import ROWS, SNAPSHOT
from app.kept_snapshots import service
from app.kept_snapshots.schemas import RestoreIn, SnapshotIn, SnapshotOut, SnapshotsOut, SnapshotStarted

router = APIRouter(prefix="/v1/snapshots", tags=["snapshots"], route_class=AnswerRoute)
SnapshotId = Annotated[Word, Path(alias="snapshot", description="a snapshot's id", examples=[examples.SNAPSHOT])]
OfCollection = Annotated[
    Word | None, Query(description="only snapshots of this collection alone", examples=[examples.COLLECTION])
]
TAKES = declare_problems((404, "ResourceNotFound"), (409, "TooManySnapshots"))
IN_USE = declare_problems((409, "ResourceInUse"))


@router.post(
    "",
    status_code=202,
    summary="Take a snapshot",
    openapi_extra={**ADMIN, **ROWS, **TAKES} | audit_as("snapshot.create"),
)
def take_snapshot(
    session: WriteDep, resources: ResourcesDep, caller: CallerDep, response: Response, body: SnapshotIn | None = None
) -> SnapshotStarted:
    """Starts a job that copies the rows at one moment, and the photos, crops and models that they name, into the home.
    A bound key must name a collection. What is erased in the service later is erased from the snapshot too."""
    return service.start_snapshot(session, resources.settings, body or SnapshotIn(), caller, response)


@router.get("", summary="List snapshots", openapi_extra=ADMIN | ROWS)
def list_snapshots(
    session: ReadDep, collection: OfCollection = None, order: Order = "newest", limit: Limit = 100,
    next_token: NextToken = None,
) -> SnapshotsOut:  # fmt: skip
    """The snapshots in the home, the newest first. A bound key sees those of its collections, and none of the whole
    service."""
    snapshots, token = service.list_snapshots(session, collection, order, limit, next_token)
    return SnapshotsOut(snapshots=snapshots, next_token=token)


@router.get("/{snapshot}", summary="Look at a snapshot", openapi_extra=ADMIN | SNAPSHOT)
def get_snapshot(snapshot: SnapshotId, session: ReadDep) -> SnapshotOut:
    """What it holds, and whether it is ready."""
    return service.get_snapshot(session, snapshot)


@router.delete(
    "/{snapshot}",
    status_code=204,
    summary="Delete a snapshot",
    openapi_extra={**ADMIN, **SNAPSHOT, **IN_USE} | audit_as("snapshot.delete"),
)
def delete_snapshot(snapshot: SnapshotId, session: WriteDep, resources: ResourcesDep) -> None:
    """Deletes its files at once. 409 while it is being written: cancel its job first."""
    service.delete_snapshot(session, resources, snapshot)


@router.post(
    "/{snapshot}:restore",
    status_code=202,
    summary="Restore a collection of a snapshot",
    openapi_extra={**ADMIN, **SNAPSHOT, **IN_USE} | audit_as("snapshot.restore"),
)
def restore_snapshot(
    snapshot: SnapshotId, body: RestoreIn, session: WriteDep, caller: CallerDep, response: Response
) -> JobOut:
    """Starts a job that restores one collection under a free name, beside all others. Its faces get new ids, unless
    `face_ids` is `keep`. A bound key can only use names that it is bound to. A whole service is restored on the command
    line."""
    return service.start_restore(session, snapshot, body, caller, response)
