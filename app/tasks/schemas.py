"""Bodies and answers of the routes for tasks."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples
from app.db.field_types import Note

OUT: dict[str, Any] = {
    "name": "age",
    "description": "both look equally old",
    "enabled": True,
    "created_at": examples.MOMENT,
}


class TaskIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"enabled": True}]})
    description: Note | None = Field(None, description='what "the same" means')
    enabled: bool | None = Field(
        None, strict=True, description="whether it can be used for labels, trainings and searches"
    )


class TaskOut(BaseModel):
    """A criterion of likeness."""

    model_config = ConfigDict(from_attributes=True, json_schema_extra={"examples": [OUT]})
    name: str
    description: str
    enabled: bool
    created_at: float


class TasksOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"tasks": [OUT]}]})
    tasks: list[TaskOut]
