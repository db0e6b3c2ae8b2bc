from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from app.db.tables import Generation
from app.deps.words import CollectionName, Note, TaskName


class Place(BaseModel):
    """Where a pointer names the model."""

    collection: str
    task: str
    pointer: Literal["champion", "challenger", "previous"]


class ModelOut(BaseModel):
    """A generation: how faces are described, embedded and scored. It never changes."""

    id: str
    method: str
    descriptors: list[dict[str, Any]] = Field(examples=[[{"name": "lbp", "options": {}}]])
    options: dict[str, Any]
    tasks: list[str]
    metric: str
    training_id: str | None
    created_at: float
    archived_at: float | None
    deployed: list[Place] = []

    @classmethod
    def of(cls, row: Generation, deployed: list[Place]) -> Self:
        return cls.model_validate(_told(row) | {"deployed": deployed})


class ModelInFull(ModelOut):
    """With its manifest and the report of its training, measured on people that it was not fitted on."""

    manifest: dict[str, Any]
    labels: dict[str, Any] | None = Field(description="which labels it was taught with, where a training made it")
    report: dict[str, Any]

    @classmethod
    def of(cls, row: Generation, deployed: list[Place]) -> Self:
        full = {"manifest": row.manifest, "labels": row.manifest["facts"].get("labels"), "report": row.report}
        return cls.model_validate(_told(row) | full | {"deployed": deployed})


class ModelsOut(BaseModel):
    models: list[ModelOut]
    next_token: str | None = None


class PublishIn(BaseModel):
    """Where a model is to serve. tasks: none means all that it serves and that are switched on."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"collection": "staff"}]})
    collection: CollectionName
    tasks: list[TaskName] = []
    override: bool = Field(False, description="publish against the gate; needs a reason, which is kept")
    reason: Note = ""


class PublishedOut(BaseModel):
    """It serves already."""

    model: str
    collection: str
    tasks: list[str]


def _told(row: Generation) -> dict[str, Any]:
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
