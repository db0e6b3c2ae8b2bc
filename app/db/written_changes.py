"""The last change of each collection that this process has committed, so that it never answers from before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, Pool, event
from sqlalchemy.orm import Session, object_session

from app.db.tables import Collection

RAISED = "raised_changes"
MAX_COLLECTIONS = 10_000

CollectionIdentity = tuple[str, float]
"""Id and time of creation, which tells a collection from an earlier one with the same id."""
Changes = dict[CollectionIdentity, int]
_collected: ContextVar[Changes | None] = ContextVar("collected changes", default=None)
_committed: WeakKeyDictionary[Pool, Changes] = WeakKeyDictionary()


def find_written_change(database: Engine, collection: str, created_at: float) -> int:
    """Return the collection's last change that this process has committed, -1 if it has committed none."""
    return _committed.get(database.pool, {}).get((collection, created_at), -1)


def forget_written_changes(database: Engine) -> None:
    """Forget the changes that this process has committed, since the database may have lost some."""
    _committed.pop(database.pool, None)


@contextmanager
def collect_changes() -> Iterator[Changes]:
    """Collect the changes that are committed in the block, also by the threads that it starts with its context."""
    changes: Changes = {}
    token = _collected.set(changes)
    try:
        yield changes
    finally:
        _collected.reset(token)


def note_raised(session: Session, collection: str, created_at: float, change: int) -> None:
    """Note the change that a transaction has made of a collection, until it is committed."""
    session.info.setdefault(RAISED, {})[collection, created_at] = change


@event.listens_for(Collection.change, "set")
def _note_assigned(collection: Collection, change: Any, *_: object) -> None:
    session = object_session(collection)
    if session is not None and isinstance(change, int):
        note_raised(session, collection.id, collection.created_at, change)


@event.listens_for(Session, "after_commit")
def _publish(session: Session) -> None:
    raised = session.info.pop(RAISED, None)
    if raised:
        changes = _committed.setdefault(session.get_bind().engine.pool, {})
        if len(changes) > MAX_COLLECTIONS:
            changes.clear()
        for identity, change in raised.items():  # another thread may have committed a later one by now
            changes[identity] = max(change, changes.get(identity, change))
        collected = _collected.get()
        if collected is not None:
            collected.update(raised)


@event.listens_for(Session, "after_rollback")
def _forget(session: Session) -> None:
    session.info.pop(RAISED, None)
