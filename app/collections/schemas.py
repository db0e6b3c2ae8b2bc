from pydantic import BaseModel, ConfigDict, Field


class CollectionIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"description": "Staff, front door"}]})
    description: str = Field("", max_length=4096)


class CollectionOut(BaseModel):
    id: str
    description: str
    face_count: int
    subject_count: int
    change: int = Field(description="the number of its last change; followers serve up to one of these")
    created_at: float


class CollectionsOut(BaseModel):
    collections: list[CollectionOut]
    next_token: str | None = None
