"""Answers of the route for the audit log."""

from datetime import UTC, datetime
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from app.db import examples
from app.db.tables import AuditEntry

ENTRY: dict[str, JsonValue] = {
    "number": 1207,
    "at": examples.TIME,
    "action": "face.delete",
    "key_id": examples.KEY,
    "address": "192.0.2.17",
    "collection": examples.COLLECTION,
    "resource": f"face:{examples.FACE}",
    "status": 204,
    "mac": "9f2c" * 16,
}


class AuditEntryOut(BaseModel):
    """An entry of the audit log."""

    model_config = ConfigDict(json_schema_extra={"examples": [ENTRY]})
    number: int = Field(description="its place in the log; a bound key does not see every number")
    at: datetime
    action: str = Field(description="what was done, `noun.verb`; `audit.` for what the log says about itself")
    key_id: str | None = Field(description="the key that was used; null: a command, or the service itself")
    address: str | None = Field(description="the address that the request came from")
    collection: str | None = Field(description="the collection it was done in; null: none, or it was not found")
    resource: str | None = Field(description="`kind:id` of what it was done to; `subject:#...` is a keyed hash")
    status: int | None = Field(description="the HTTP status of the answer; null: it was no request")
    mac: str = Field(description="over this entry and the `mac` of the one before")

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        return cls(
            number=entry.number, at=datetime.fromtimestamp(entry.at, UTC), action=entry.action, key_id=entry.key_id,
            address=entry.address, collection=entry.collection_id, resource=entry.resource, status=entry.status,
            mac=entry.mac,
        )  # fmt: skip


class AuditOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"entries": [ENTRY], "next_token": None}]})
    entries: list[AuditEntryOut]
    next_token: str | None = None
