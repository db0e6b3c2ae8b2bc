from typing import Literal, Self

from pydantic import BaseModel

from app.db.tables import JobItem
from app.deps.accepted import JobOut


class JobsOut(BaseModel):
    jobs: list[JobOut]
    next_token: str | None = None


class ItemOut(BaseModel):
    """One photo of an import."""

    number: int
    name: str
    state: Literal["queued", "done", "failed"]
    face_ids: list[str] = []
    reasons: list[str] = []

    @classmethod
    def of(cls, item: JobItem) -> Self:
        shown = {k: v for k, v in item.detail.items() if k in ("face_ids", "reasons")}
        return cls(number=item.number, name=item.name, state=item.state, **shown)


class ItemsOut(BaseModel):
    items: list[ItemOut]
    next_token: str | None = None
