"""What a route adds to its entry of the audit log: the collections and the resource that its path does not name."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

NOTE = "audit_note"
"""The name of the note in the `info` of a session and in the state of a request."""


@dataclass
class AuditNote:
    """collections: each gets an entry of its own; resource: `kind:id`, in place of the one in the path"""

    collections: set[str] = field(default_factory=set)
    resource: str | None = None


def note_audited(session: Session, collections: Iterable[str | None] = (), resource: str | None = None) -> None:
    """Note what the request of this session works on. Outside of a request, this does nothing."""
    note = session.info.get(NOTE)
    if note is not None:
        note.collections |= set(collections) - {None}
        note.resource = resource or note.resource
