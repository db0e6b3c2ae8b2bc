"""Reserve the id of a collection while it is restored, and free what a restore that died has reserved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import Engine, exists, select
from sqlalchemy.orm import Session

from app.db.session import check_transaction, writing
from app.db.tables import Base, Collection, Job
from app.errors import Conflict
from app.queue.jobs import LIVE_STATES
from app.snapshots.files import BLOBS
from app.storage.blob_store import Blobs

LOCK_FOLDER = "restores"
LOCK_SECONDS = 1.0
"""How long a restore waits for its lock, which others hold for a moment to see whether it is held."""
SERVICE = "@service"
"""The name of the lock of a restore of the whole service; no collection can have it as its id."""
RESERVATION = "being restored from a snapshot"
"""The description of a collection that has nothing but its id until its rows are restored."""


@contextmanager
def keep_others_out(database: Engine, home: Path, name: str) -> Iterator[None]:
    """Let one restore at a time use this id, and free the id if an earlier one was killed after it reserved it.

    Raises Conflict if another process restores it now.
    """
    with lock_name(home, name, LOCK_SECONDS):
        blobs = Blobs(home / BLOBS)
        with writing(database) as session:
            if release_untouched(session, name):
                check_transaction(session)
                blobs.set_aside(name)  # halves of files too, which nobody could tell from those of a running enrolment
        blobs.empty_trash()
        yield


@contextmanager
def lock_name(home: Path, name: str, seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock of the restore of a collection, or of SERVICE. Raises Conflict if another has it for so long."""
    (home / LOCK_FOLDER).mkdir(exist_ok=True)
    lock = FileLock(home / LOCK_FOLDER / f"{name}.lock")
    try:
        lock.acquire(timeout=seconds)
    except Timeout as error:
        restored = "the whole service" if name == SERVICE else repr(name)
        raise Conflict(f"another process is restoring {restored}; wait until it has ended") from error
    try:
        yield
    finally:
        lock.release()


def is_being_restored(home: Path, name: str) -> bool:
    """Whether a process restores a collection under this id now, or the whole service."""
    return is_name_locked(home, name) or is_name_locked(home, SERVICE)


def is_name_locked(home: Path, name: str) -> bool:
    """Whether a process holds the lock of this name: see `lock_name`."""
    if not (home / LOCK_FOLDER / f"{name}.lock").exists():
        return False
    try:
        with lock_name(home, name):
            return False
    except Conflict:
        return True


def release_untouched(session: Session, name: str) -> bool:
    """Delete the row of a collection that was reserved, not restored, and not written to since. Returns whether it is.

    Until the transaction ends, nobody can make a collection of this name.
    """
    reserved = session.get(Collection, name, with_for_update=True)
    if reserved is None or not is_untouched(session, reserved):
        return False
    session.delete(reserved)
    session.flush()
    return True


def is_untouched(session: Session, reserved: Collection) -> bool:
    """Whether a locked collection has nothing but its reserved id: no row refers to it, and no job works for it.

    Its change tells of what was written and deleted again.
    """
    if reserved.description != RESERVATION or reserved.change:
        return False
    columns = (column for table in Base.metadata.sorted_tables for column in table.columns)
    owners = [
        column for column in columns if any(key.column.table is Collection.__table__ for key in column.foreign_keys)
    ]
    if any(session.scalar(select(exists().where(column == reserved.id))) for column in owners):
        return False
    live = session.scalars(select(Job.body).where(Job.state.in_(LIVE_STATES)))
    return all(body.get("bound_to", {}).get(reserved.id) != reserved.created_at for body in live)
