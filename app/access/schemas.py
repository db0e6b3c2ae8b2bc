"""Bodies and answers of the routes for keys."""

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from app.db import examples
from app.db.field_types import CollectionName, Note
from app.deps.caller import Role

IN: dict[str, JsonValue] = {"role": "operator", "name": "upload desk", "collections": [examples.COLLECTION]}
OUT: dict[str, JsonValue] = IN | {"id": examples.KEY, "created_at": examples.MOMENT, "revoked_at": None}
NEW: dict[str, JsonValue] = OUT | {"key": "lk_shown-once-and-never-again"}


class KeyIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [IN]})
    role: Role
    name: Note = Field("", max_length=255)
    collections: tuple[CollectionName, ...] = Field((), description="the collections it may use; empty: all")


class KeyOut(BaseModel):
    """A key, without its secret."""

    model_config = ConfigDict(from_attributes=True, json_schema_extra={"examples": [OUT]})
    id: str
    role: Role
    name: str
    collections: list[str]
    created_at: float
    revoked_at: float | None


class NewKeyOut(KeyOut):
    """A new key, with its secret."""

    model_config = ConfigDict(json_schema_extra={"examples": [NEW]})
    key: str = Field(description="the secret, which cannot be shown again")


class KeysOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"keys": [OUT], "next_token": None}]})
    keys: list[KeyOut]
    next_token: str | None = None
