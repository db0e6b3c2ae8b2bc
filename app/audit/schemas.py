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


UNREADABLE = "audit.unreadable"


class AuditEntryOut(BaseModel):
    """An entry of the audit log."""

    model_config = ConfigDict(json_schema_extra={"examples": [ENTRY]})
    number: int = Field(description="its place in the log; a bound key does not see every number")
    at: datetime
    action: str = Field(description="what was done, `noun.verb`; `audit.` for what the log says about itself")
    key_id: str | None = Field(None, description="the key that was used; null: a command, or the service itself")
    address: str | None = Field(None, description="the address that the request came from")
    collection: str | None = Field(None, description="the collection it was done in; null: none, or it was not found")
    resource: str | None = Field(None, description="`kind:id` of what it was done to; `subject:#...` is a keyed hash")
    status: int | None = Field(None, description="the HTTP status of the answer; null: it was no request")
    mac: str = Field(description="over this entry and the `mac` of the one before")

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        """Describe an entry; UNREADABLE stands for one whose columns hold what the service has not written there."""
        values = {
            name: getattr(entry, name) for name in ("number", "action", "key_id", "address", "resource", "status")
        }
        try:
            at = datetime.fromtimestamp(entry.at, UTC)
            return cls.model_validate(values | {"at": at, "collection": entry.collection_id, "mac": entry.mac})
        except (TypeError, ValueError, OverflowError, OSError):
            return cls(number=entry.number, at=datetime.fromtimestamp(0, UTC), action=UNREADABLE, mac="")


class AuditOut(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"entries": [ENTRY], "next_token": None}]})
    entries: list[AuditEntryOut]
    next_token: str | None = None
