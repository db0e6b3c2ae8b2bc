"""Bodies and answers of the routes for keys."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, JsonValue

from app.access.keys import MAX_NAME_CHARACTERS
from app.db import examples
from app.db.field_types import NO_NUL, CollectionName
from app.deps.caller import Role

MAX_OVERLAP_SECONDS = 30 * 86_400
MAX_KEY_COLLECTIONS = 1_000
MAX_TIME_SECONDS = 253_402_300_799  # the last second of the year 9999
END = examples.MOMENT + 90 * 86_400
IN: dict[str, JsonValue] = {
    "role": "operator", "name": "upload desk", "collections": [examples.COLLECTION], "expires_at": END,
}  # fmt: skip
OUT: dict[str, JsonValue] = IN | {
    "id": examples.KEY, "created_at": examples.MOMENT, "revoked_at": None, "previous_until": None,
}  # fmt: skip
NEW: dict[str, JsonValue] = OUT | {"key": "lk_shown-once-and-never-again"}


def _drop_duplicates(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


class KeyIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [IN]})
    role: Role
    name: str = Field("", max_length=MAX_NAME_CHARACTERS, pattern=NO_NUL)
    collections: Annotated[tuple[CollectionName, ...], FailFast(), AfterValidator(_drop_duplicates)] = Field(
        (), max_length=MAX_KEY_COLLECTIONS, description="the collections it may use; empty: all"
    )
    expires_at: float | None = Field(
        None,
        gt=0,
        le=MAX_TIME_SECONDS,
        allow_inf_nan=False,
        strict=True,
        description="the time from which it is refused, in seconds since 1970; null: it never expires",
    )


class KeyOut(BaseModel):
    """A key, without its secret."""

    model_config = ConfigDict(from_attributes=True, json_schema_extra={"examples": [OUT]})
    id: str
    role: Role
    name: str
    collections: list[str]
    created_at: float
    revoked_at: float | None
    expires_at: float | None = Field(description="the time from which it is refused")
    previous_until: float | None = Field(
        description="the time from which the secret before the last rotation is refused; null: it was never rotated"
    )


class NewKeyOut(KeyOut):
    """A new key, with its secret."""

    model_config = ConfigDict(json_schema_extra={"examples": [NEW]})
    key: str = Field(description="the secret, which cannot be shown again")


class RotateIn(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"overlap_seconds": 3600}]})
    overlap_seconds: float = Field(
        3600,
        ge=0,
        le=MAX_OVERLAP_SECONDS,
        allow_inf_nan=False,
        strict=True,
        description="how long the secret that it has now is still accepted",
    )


class KeysOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"keys": [OUT], "next_token": None}]})
    keys: list[KeyOut]
    next_token: str | None = None
