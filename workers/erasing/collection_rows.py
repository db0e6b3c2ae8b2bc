"""Delete the rows of a large collection in steps. The job can be killed at any moment, and goes on where it stopped."""

import time

from sqlalchemy.orm import Session

from app.db.session import reading, snapshot, writing
from app.db.tables import Collection, Erasure, Face, Job
from app.galleries.deletion import count_many_rows, delete_some_rows
from app.galleries.erasures import SERVED_BY, describe_erased
from workers.context import JobContext, Later

TURN_SECONDS = 5.0
"""After this time, other jobs have their turn."""


def delete_rows(context: JobContext, erasure: Erasure) -> Erasure:
    """Delete the rows that are left of a deleted collection. Returns the erasure, with what they were.

    Raises Later if other jobs have their turn, Interrupted, Busy.
    """
    if "removed" not in erasure.contents:
        erasure = _record_rows(context, erasure)
    done, total = _read_progress(context, erasure)
    ends_at = time.monotonic() + TURN_SECONDS
    while done < total:
        started = time.monotonic()
        with writing(context.resources.database) as session:
            count = _delete_some(session, erasure)
            done = done + count if count else total
            context.write_progress(session, done, total)
        if time.monotonic() > ends_at:
            raise Later(0.0)
        context.interrupted.wait(time.monotonic() - started)  # so that others write in turn with this job on SQLite
    return erasure


def _record_rows(context: JobContext, erasure: Erasure) -> Erasure:
    """Write down what the rows are. Nobody writes to them any more, so that they can be read without a lock."""
    chosen = (Face.collection_id == erasure.collection_id,)
    with snapshot(context.resources.database) as session:
        targets, contents = describe_erased(session, erasure, chosen)
    with writing(context.resources.database) as session:
        row = session.get_one(Erasure, erasure.id, with_for_update=True)
        served_by = row.targets.get(SERVED_BY, {})  # processes strike themselves out meanwhile
        row.targets, row.contents = targets | {SERVED_BY: served_by}, contents
    return row


def _read_progress(context: JobContext, erasure: Erasure) -> tuple[int, int]:
    """Return how many rows are deleted, and of how many, the row of the collection included."""
    with reading(context.resources.database) as session:
        is_left = _is_same(session.get(Collection, erasure.collection_id), erasure)
        left = 1 + count_many_rows(session, erasure.collection_id) if is_left else 0
        job = session.get(Job, context.job_id)
        total = left if job is None or job.total is None else job.total
    return max(0, total - left), total


def _delete_some(session: Session, erasure: Erasure) -> int:
    """Delete a step of rows, and return their number: 0 if none is left."""
    collection = session.get(Collection, erasure.collection_id, with_for_update=True)
    return delete_some_rows(session, collection) if collection is not None and _is_same(collection, erasure) else 0


def _is_same(collection: Collection | None, erasure: Erasure) -> bool:
    """Whether this is the collection that was deleted, and not a later one of the same name."""
    return collection is not None and collection.created_at == erasure.collection_created_at
