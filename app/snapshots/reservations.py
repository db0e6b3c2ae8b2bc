"""Reserve the id of a collection while it is restored, and free what a restore that died has reserved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import Engine, delete, exists, select

from app.db.session import writing
from app.db.tables import Collection, Deployment, Face
from app.errors import Conflict

LOCK_FOLDER = "restores"
RESERVATION = "being restored from a snapshot"
"""The description of a collection that has nothing but its id until its rows are restored."""


@contextmanager
def keep_others_out(database: Engine, home: Path, name: str) -> Iterator[None]:
    """Let one restore at a time use this id, and free the id if an earlier one was killed after it reserved it.

    Raises Conflict if another process restores it now.
    """
    (home / LOCK_FOLDER).mkdir(exist_ok=True)
    lock = FileLock(home / LOCK_FOLDER / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise Conflict(f"another process is restoring {name!r}; wait until it has ended") from error
    try:
        _free_name(database, name)
        yield
    finally:
        lock.release()


def _free_name(database: Engine, name: str) -> None:
    """Delete the row of a collection that was reserved and not restored. What it has of files is restored again."""
    is_used = exists(select(Deployment.task).where(Deployment.collection_id == name))
    has_faces = exists(select(Face.pk).where(Face.collection_id == name))
    reserved = delete(Collection).where(Collection.id == name, Collection.description == RESERVATION)
    with writing(database) as session:
        session.execute(reserved.where(~is_used, ~has_faces))
