from pydantic import BaseModel, ConfigDict, Field

from app.deps.words import Note


class TaskIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"enabled": True}]})
    description: Note | None = Field(None, description='what "same" means')
    enabled: bool | None = Field(None, description="whether it may be labelled, trained and searched")


class TaskOut(BaseModel):
    """A criterion of likeness."""

    model_config = ConfigDict(from_attributes=True)
    name: str
    description: str
    enabled: bool
    created_at: float


class TasksOut(BaseModel):
    tasks: list[TaskOut]
