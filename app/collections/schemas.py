"""Bodies and answers of the routes for collections."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.db import examples
from app.db.field_types import Note, Word
from ml.descriptors.external import MAX_DIM, Metric

DESCRIPTOR: dict[str, Any] = {"external": {"name": "arcface-r100", "dim": 512, "metric": "cosine"}}
IN: dict[str, Any] = {"description": "Staff, front door"}
OUT: dict[str, Any] = IN | {
    "id": examples.COLLECTION,
    "face_count": 2400,
    "subject_count": 311,
    "change": 1042,
    "descriptor": None,
    "damage": None,
    "created_at": examples.MOMENT,
}


class ExternalDescriptor(BaseModel):
    """The vectors that are imported into a collection."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(
        "external", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="what made the vectors: a recogniser and its version"
    )
    dim: int = Field(strict=True, ge=1, le=MAX_DIM, description="numbers of a vector")
    metric: Metric = Field(description="what compares two vectors. cosine: only their directions count and are kept")


class CollectionDescriptor(BaseModel):
    """What the faces of a collection are described by, if not by a recogniser."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [DESCRIPTOR]})
    external: ExternalDescriptor


class CollectionIn(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [IN, IN | {"recogniser": "dlib_resnet"}, IN | {"descriptor": DESCRIPTOR}]},
    )
    description: Note = ""
    recogniser: Word | None = Field(
        None,
        description="the recogniser of a new collection: a name that `GET /v1/recognisers` lists as installed; null: "
        "the default",
    )
    descriptor: CollectionDescriptor | None = Field(
        None,
        description="for a new collection of imported vectors: what they are. Its faces come from "
        "`faces:import-embeddings`, and it takes no photos",
    )

    @model_validator(mode="after")
    def _check_one_descriptor(self) -> Self:
        if self.recogniser is not None and self.descriptor is not None:
            raise ValueError("give recogniser for photos, or descriptor for imported vectors, not both")
        return self


class CollectionOut(BaseModel):
    """A set of enrolled faces that is searched as one."""

    model_config = ConfigDict(json_schema_extra={"examples": [OUT]})
    id: str
    description: str
    face_count: int
    subject_count: int
    change: int = Field(description="the number of its last change; it rises with every change")
    descriptor: CollectionDescriptor | None = Field(description="of imported vectors; null: the faces are of photos")
    damage: str | None = Field(
        description="why the descriptor cannot be read, which is null then, and what to do; null: nothing is damaged"
    )
    created_at: float


class CollectionsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"collections": [OUT], "next_token": None}]})
    collections: list[CollectionOut]
    next_token: str | None = None
