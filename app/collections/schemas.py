"""Bodies and answers of the routes for collections."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples
from app.db.field_types import Note, Word

IN: dict[str, Any] = {"description": "Staff, front door"}
OUT: dict[str, Any] = IN | {
    "id": examples.COLLECTION,
    "face_count": 2400,
    "subject_count": 311,
    "change": 1042,
    "created_at": examples.MOMENT,
}


class CollectionIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [IN, IN | {"recogniser": "dlib_resnet"}]})
    description: Note = ""
    recogniser: Word | None = Field(
        None,
        description="the recogniser of a new collection: a name that `GET /v1/recognisers` lists as installed; null: "
        "the default",
    )


class CollectionOut(BaseModel):
    """A set of enrolled faces that is searched as one."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    id: str
    description: str
    face_count: int
    subject_count: int
    change: int = Field(description="the number of its last change; it rises with every change")
    created_at: float


class CollectionsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"collections": [OUT], "next_token": None}]})
    collections: list[CollectionOut]
    next_token: str | None = None
