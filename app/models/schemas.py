from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples
from app.db.field_types import CollectionName, Note, TaskName
from app.db.tables import ModelRecord

PLACE: dict[str, Any] = {"collection": examples.COLLECTION, "task": "identity", "pointer": "champion"}
OUT: dict[str, Any] = {
    "id": examples.MODEL,
    "method": "ldml",
    "descriptors": [{"name": "lbp", "options": {}}],
    "options": {"dim": 32, "seed": 0},
    "tasks": ["identity"],
    "metric": "euclidean",
    "training_id": examples.TRAINING,
    "created_at": examples.MOMENT,
    "archived_at": None,
    "deployed": [PLACE],
}
IN_FULL: dict[str, Any] = OUT | {
    "manifest": {"id": examples.MODEL, "embedder": {"name": "ldml"}, "facts": {"holdout": 0.2}},
    "labels": {"identity": {"pairs": 412}},
    "report": {"tasks": {"identity": {"candidate": {"map": 0.71}, "current": {"map": 0.58}}}},
}
PUBLISHED: dict[str, Any] = {"model": examples.MODEL, "collection": examples.COLLECTION, "tasks": ["identity"]}


class DeployedAt(BaseModel):
    """Where a pointer names the model."""

    model_config = ConfigDict(json_schema_extra={"examples": [PLACE]})
    collection: str
    task: str
    pointer: Literal["champion", "challenger", "previous"]


class ModelOut(BaseModel):
    """How faces are described, embedded and scored. A model never changes."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    id: str
    method: str
    descriptors: list[dict[str, Any]]
    options: dict[str, Any]
    tasks: list[str]
    metric: str
    training_id: str | None
    created_at: float
    archived_at: float | None
    deployed: list[DeployedAt] = []

    @classmethod
    def of(cls, row: ModelRecord, deployed: list[DeployedAt]) -> Self:
        return cls.model_validate(_told(row) | {"deployed": deployed})


class ModelInFull(ModelOut):
    """With its manifest and the report of its training, measured on people that it was not fitted on."""

    model_config = ConfigDict(json_schema_extra={"examples": [IN_FULL]})
    manifest: dict[str, Any]
    labels: dict[str, Any] | None = Field(description="which labels it was taught with, where a training made it")
    report: dict[str, Any]

    @classmethod
    def of(cls, row: ModelRecord, deployed: list[DeployedAt]) -> Self:
        full = {"manifest": row.manifest, "labels": row.manifest["facts"].get("labels"), "report": row.report}
        return cls.model_validate(_told(row) | full | {"deployed": deployed})


class ModelsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"models": [OUT], "next_token": None}]})
    models: list[ModelOut]
    next_token: str | None = None


class PublishAtIn(BaseModel):
    """Where a model is to serve. tasks: none means all that it serves and that are switched on."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"collection": examples.COLLECTION}]})
    collection: CollectionName
    tasks: list[TaskName] = []
    override: bool = Field(False, description="publish against the gate; needs a reason, which is kept")
    reason: Note = ""


class PublishedOut(BaseModel):
    """It serves already."""

    model_config = ConfigDict(json_schema_extra={"examples": [PUBLISHED]})
    model: str
    collection: str
    tasks: list[str]


def _told(row: ModelRecord) -> dict[str, Any]:
    made = row.manifest
    return {
        "id": row.id,
        "method": made["embedder"]["name"],
        "descriptors": made["descriptors"],
        "options": made["embedder"]["options"],
        "tasks": made["tasks"],
        "metric": made["metric"],
        "training_id": row.training_id,
        "created_at": row.created_at,
        "archived_at": row.archived_at,
    }
