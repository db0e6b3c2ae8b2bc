"""Bodies and answers of the routes for snapshots."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples
from app.db.field_types import CollectionName, NewCollectionName
from app.db.tables import Job, KeptSnapshot
from app.deps.job_response import QUEUED, JobOut

SnapshotState = Literal["queued", "writing", "ready", "failed", "cancelled"]
OUT: dict[str, Any] = {
    "id": examples.SNAPSHOT,
    "collection": examples.COLLECTION,
    "state": "ready",
    "job": examples.JOB,
    "faces": 2400,
    "files": 7230,
    "bytes": 412_338_176,
    "created_at": examples.MOMENT,
    "finished_at": examples.MOMENT + 14.2,
    "erased_at": None,
}
TAKING = QUEUED | {"kind": "snapshot", "snapshot": examples.SNAPSHOT}


class SnapshotIn(BaseModel):
    """What to copy."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"collection": examples.COLLECTION}, {"collection": None}]}
    )
    collection: CollectionName | None = Field(
        None, description="copy only this collection, with its models and labels; null: the whole service"
    )


class SnapshotOut(BaseModel):
    """A copy of the service or of a collection that is kept in the home."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    id: str
    collection: str | None = Field(description="the only one that it holds; null: the whole service")
    state: SnapshotState = Field(description="failed: its job says why")
    job: str | None = Field(description="the job that writes or has written it")
    faces: int = Field(description="0 until it is ready")
    files: int = Field(description="photos, crops, and files of models")
    bytes: int = Field(description="total size of these files; the rows come on top")
    created_at: float
    finished_at: float | None
    erased_at: float | None = Field(
        description="when something that was erased in the service was last erased here too"
    )

    @classmethod
    def of(cls, row: KeptSnapshot, job: Job | None) -> Self:
        return cls(
            id=row.id,
            collection=row.collection_id,
            state=_derive_state(row, job),
            job=row.job_id,
            faces=row.faces,
            files=row.files,
            bytes=row.bytes,
            created_at=row.created_at,
            finished_at=row.finished_at,
            erased_at=row.erased_at,
        )


def _derive_state(row: KeptSnapshot, job: Job | None) -> SnapshotState:
    if row.finished_at is not None:
        return "ready"
    if job is None or job.state == "failed":
        return "failed"
    if job.state == "cancelled":
        return "cancelled"
    return "writing" if job.started_at else "queued"


class SnapshotsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"snapshots": [OUT], "next_token": None}]})
    snapshots: list[SnapshotOut]
    next_token: str | None = None


class SnapshotStarted(JobOut):
    """The job that writes a snapshot."""

    model_config = ConfigDict(json_schema_extra={"examples": [TAKING]})
    snapshot: str = Field(description="the id of the snapshot")


class RestoreIn(BaseModel):
    """Which collection to restore, and under which name."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"collection": examples.COLLECTION, "name": "staff-before-merge"}]},
    )
    collection: CollectionName | None = Field(
        None, description="its id in the snapshot; may be left out if the snapshot holds one only"
    )
    name: NewCollectionName = Field(description="its id from now on, which must be free")
    face_ids: Literal["new", "keep"] = Field(
        "new", description="keep: the faces keep their ids, which must be free: their collection was deleted"
    )
