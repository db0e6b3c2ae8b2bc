"""Answers of the routes for jobs."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from app.db import examples
from app.db.tables import JobItem
from app.deps.job_response import ENTRY, JobEntry

ITEM: dict[str, Any] = {
    "number": 17,
    "name": "ada/badge-0042.jpg",
    "state": "done",
    "face_ids": [examples.FACE],
    "reasons": [],
}
REFUSED: dict[str, Any] = {
    "number": 18, "name": "ada/blurred.jpg", "state": "failed", "face_ids": [], "reasons": ["LOW_QUALITY_SHARPNESS"],
}  # fmt: skip


class JobsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"jobs": [ENTRY], "next_token": None}]})
    jobs: list[JobEntry]
    next_token: str | None = None


class ItemOut(BaseModel):
    """One photo of an import."""

    model_config = ConfigDict(json_schema_extra={"examples": [ITEM, REFUSED]})
    number: int
    name: str = Field(description="its path in the archive")
    state: Literal["queued", "done", "failed"]
    face_ids: list[str] = []
    reasons: list[str] = []

    @classmethod
    def of(cls, item: JobItem) -> Self:
        details = {k: v for k, v in item.detail.items() if k in ("face_ids", "reasons")}
        return cls(number=item.number, name=item.name, state=item.state, **details)


class ItemsOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"items": [ITEM, REFUSED], "next_token": None}]})
    items: list[ItemOut]
    next_token: str | None = None
