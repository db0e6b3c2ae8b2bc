"""Delete a collection: a small one at once, a large one in steps, so that other writers need not wait on SQLite."""

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Deployment, Erasure, Face, FaceCluster, Follower, Removal, Subject, TrainingPolicy
from app.galleries.erasures import SERVED_BY, describe_erased, start_erasure
from app.queue.jobs import cancel_jobs_of

ROWS_PER_STEP = 2_000
"""A collection of more faces is deleted in steps of so many rows."""
MANY_ROWS = (Face, Subject, FaceCluster, Removal)
"""Tables with many rows of a collection, in the order in which these are deleted. With a face go its labels,
embeddings, coordinates and places in clusters."""
ACTIVE_ROWS = (Deployment, TrainingPolicy)
"""Tables by whose rows a collection is searched and trained, beside those of its followers."""


def delete_collection(session: Session, collection: Collection) -> Erasure:
    """Hide a locked collection from everybody, cancel the jobs that work for it, and enqueue the job that erases it.

    A small collection is deleted in this transaction. The job deletes a large one.
    """
    collection.change += 1
    collection.is_deleted = True
    cancel_jobs_of(session, collection)
    chosen = (Face.collection_id == collection.id,)
    erasure, _ = start_erasure(session, collection, "collection", chosen)
    erasure.targets = erasure.targets | {SERVED_BY: _delete_followers(session, collection.id)}
    for row in ACTIVE_ROWS:
        session.execute(delete(row).where(row.collection_id == collection.id))
    if not _is_large(session, collection.id):
        erasure.targets, erasure.contents = describe_erased(session, erasure, chosen)
        while delete_some_rows(session, collection) > 0:
            continue
    return erasure


def _delete_followers(session: Session, collection: str) -> dict[str, float]:
    """Delete the rows of the processes that serve a locked collection. Returns process -> its last sign of life."""
    deleted = delete(Follower).where(Follower.collection_id == collection).returning(Follower.process, Follower.seen_at)
    seen_at = dict[str, float]()
    for process, at in session.execute(deleted, execution_options={"synchronize_session": False}):
        seen_at[process] = max(at, seen_at.get(process, at))
    return seen_at


def _is_large(session: Session, collection: str) -> bool:
    beyond = (select(row.pk).where(row.collection_id == collection).offset(ROWS_PER_STEP).limit(1) for row in MANY_ROWS)
    return any(session.scalar(one) is not None for one in beyond)


def count_many_rows(session: Session, collection: str) -> int:
    """Return how many rows of a collection are deleted in steps."""
    counts = (select(func.count()).select_from(row).where(row.collection_id == collection) for row in MANY_ROWS)
    return sum(session.scalar(one) or 0 for one in counts)


def delete_some_rows(session: Session, collection: Collection) -> int:
    """Delete a step of the rows of a locked collection, and return their number: 0 once its own row is deleted."""
    for row in MANY_ROWS:
        some = select(row.pk).where(row.collection_id == collection.id).limit(ROWS_PER_STEP)
        deleted = delete(row).where(row.pk.in_(some)).returning(row.pk)
        pks = session.scalars(deleted, execution_options={"synchronize_session": False}).all()
        if pks:
            return len(pks)
    session.delete(collection)
    session.flush()
    return 0
