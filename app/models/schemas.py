"""Bodies and answers of the routes for models."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, JsonValue

from app.db import examples
from app.db.field_types import CollectionName, Note, SubjectId, TaskName
from app.db.tables import ModelRecord
from app.deps.job_response import QUEUED, JobOut

MAX_PUBLISHED_TASKS = 64  # a training learns no more
DEPLOYED_AT: dict[str, Any] = {"collection": examples.COLLECTION, "task": "identity", "pointer": "champion"}
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
    "deployed": [DEPLOYED_AT],
}
IN_FULL: dict[str, Any] = OUT | {
    "manifest": {"id": examples.MODEL, "embedder": {"name": "ldml"}, "facts": {"holdout": 0.2}},
    "labels": {"identity": {"pairs": 412}},
    "report": {"tasks": {"identity": {"candidate": {"map": 0.71}, "current": {"map": 0.58}}}},
}
STARTED: dict[str, JsonValue] = QUEUED | {"kind": "train", "training": examples.TRAINING}
PUBLISHED: dict[str, Any] = {"model": examples.MODEL, "collection": examples.COLLECTION, "tasks": ["identity"]}


class RefitIn(BaseModel):
    """The people whom a model shall never have seen."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"without": [examples.SUBJECT]}]})
    without: Annotated[list[SubjectId], FailFast()] = Field(
        min_length=1, max_length=10_000, description="ids of subjects, erased or not"
    )
    collection: CollectionName | None = Field(None, description="their collection; by default that of the training")


class RefitStarted(JobOut):
    """The job, and the training that it runs."""

    model_config = ConfigDict(json_schema_extra={"examples": [STARTED]})
    training: str


class DeployedAt(BaseModel):
    """A pointer that names the model."""

    model_config = ConfigDict(json_schema_extra={"examples": [DEPLOYED_AT]})
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
        return cls.model_validate(_common_fields(row) | {"deployed": deployed})


class ModelInFull(ModelOut):
    """A model with its manifest and the report of its training, measured on people that it was not fitted on."""

    model_config = ConfigDict(json_schema_extra={"examples": [IN_FULL]})
    manifest: dict[str, Any]
    labels: dict[str, Any] | None = Field(
        description="how many labelled pairs of each task it was trained with; models of earlier versions state no "
        "number; null if no training made it"
    )
    report: dict[str, Any]

    @classmethod
    def of(cls, row: ModelRecord, deployed: list[DeployedAt]) -> Self:
        provenance = _hide_label_numbers(row.manifest["facts"])
        manifest = row.manifest | {"facts": provenance}
        full = {"manifest": manifest, "labels": provenance.get("labels"), "report": row.report}
        return cls.model_validate(_common_fields(row) | full | {"deployed": deployed})


class ModelsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"models": [OUT], "next_token": None}]})
    models: list[ModelOut]
    next_token: str | None = None


class PublishAtIn(BaseModel):
    """Where a model is to serve. `tasks`: empty means all tasks of the model that are switched on."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"collection": examples.COLLECTION}]})
    collection: CollectionName
    tasks: list[TaskName] = Field([], max_length=MAX_PUBLISHED_TASKS)
    override: bool = Field(
        False, strict=True, description="publish against the gate; needs a reason, which is recorded"
    )
    reason: Note = ""


class PublishedOut(BaseModel):
    """The model serves already."""

    model_config = ConfigDict(json_schema_extra={"examples": [PUBLISHED]})
    model: str
    collection: str
    tasks: list[str]


def _hide_label_numbers(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of a model without the labels that one of an earlier version lists, of all collections."""
    labels = provenance.get("labels")
    if not labels:
        return dict(provenance)
    counts = {task: of_task if isinstance(of_task, dict) else {} for task, of_task in labels.items()}
    return {**provenance, "labels": counts}


def _common_fields(row: ModelRecord) -> dict[str, Any]:
    manifest = row.manifest
    return {
        "id": row.id,
        "method": manifest["embedder"]["name"],
        "descriptors": manifest["descriptors"],
        "options": manifest["embedder"]["options"],
        "tasks": manifest["tasks"],
        "metric": manifest["metric"],
        "training_id": row.training_id,
        "created_at": row.created_at,
        "archived_at": row.archived_at,
    }
