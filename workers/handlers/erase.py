"""Erase what the deletion of a face, a subject or a collection has left: of a large collection, its rows first."""

from typing import Any

from sqlalchemy import func, select, update

from app.db.session import reading, writing
from app.db.tables import Erasure, Job, now
from app.galleries.erasures import BEGUN_AT, FINAL, PENDING, find_commit_bound
from app.queue.messages import Erase
from workers.cleanup.stored_files import remove_collection_files, remove_photo_files
from workers.context import JobContext, Later
from workers.erasing.blockers import find_blocker
from workers.erasing.collection_rows import delete_rows
from workers.erasing.completion import complete_erasures
from workers.erasing.erased_files import remove_erased_files

FIRST_DELAY_SECONDS = 0.5
"""Erasures that come within this time are completed together."""
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 2.0, 300.0
RETRY_SHARE = 0.25
"""An erasure that waits for a long job is looked at again after this share of the time that it has waited."""


def erase_files(message: Erase, context: JobContext) -> dict[str, Any]:
    """Remove the files, then all other traces: {"files", "erasure"}. A second run finds nothing.

    Raises Later until the receipt of the erasure is final, Interrupted.
    """
    if message.erasure:
        return {"erasure": message.erasure, "files": _erase(message.erasure, context)}
    if message.whole and not remove_collection_files(context.resources, message.collection):
        return {"files": "those that the collection of the same name does not need"}
    removed = remove_photo_files(context, message.collection, message.images)
    return {"files": "all" if message.whole else removed}


def _erase(erasure_id: str, context: JobContext) -> int:
    """Erase the files at the first run, and everything else at the next. Returns the number of files."""
    erasure = _read(context, erasure_id)
    if erasure is None:
        return 0
    if erasure.state == PENDING and "removed_files" not in erasure.targets:
        erasure = _begin(context, erasure_id)
        remove_erased_files(context, delete_rows(context, erasure) if erasure.target == "collection" else erasure)
        raise Later(FIRST_DELAY_SECONDS)
    if erasure.state != FINAL and _is_oldest(context, erasure_id):
        complete_erasures(context)
        _hasten_oldest(context)
        erasure = _read(context, erasure_id)
    elif erasure.state != FINAL and _can_go_on(context, erasure_id):
        _hasten_oldest(context)
    if erasure is None or erasure.state != FINAL:
        waited = now() - erasure.requested_at if erasure else 0.0
        raise Later(min(MAX_RETRY_SECONDS, max(MIN_RETRY_SECONDS, RETRY_SHARE * waited)))
    removed = erasure.contents["removed"]
    return int(removed["photos"] + removed["crops"] + removed["descriptors"])


def _begin(context: JobContext, erasure_id: str) -> Erasure:
    """Store by when the deletion was committed, at the first run. Returns the erasure."""
    with writing(context.resources.database) as session:
        erasure = session.get_one(Erasure, erasure_id, with_for_update=True)
        if BEGUN_AT not in erasure.targets:
            erasure.targets = erasure.targets | {BEGUN_AT: find_commit_bound(session, erasure)}
        return erasure


def _is_oldest(context: JobContext, erasure_id: str) -> bool:
    """Whether no earlier erasure is waiting: the job of the first completes those that wait."""
    with reading(context.resources.database) as session:
        return session.scalar(select(func.min(Erasure.id)).where(Erasure.state != FINAL)) == erasure_id


def _can_go_on(context: JobContext, erasure_id: str) -> bool:
    """Whether an erasure waits for nothing but the job of the oldest, which may wait for a long job of its collection.

    One that waits otherwise is to be scrubbed once at its beginning.
    """
    with reading(context.resources.database) as session:
        erasure = session.get_one(Erasure, erasure_id)
        if erasure.state != PENDING or "counts" not in erasure.targets:
            return True
        return find_blocker(session, erasure, context.resources.audit).name is None


def _hasten_oldest(context: JobContext) -> None:
    """Have the job of the oldest erasure that waits run soon: it completes the others too."""
    with writing(context.resources.database) as session:
        oldest = session.scalar(select(func.min(Erasure.id)).where(Erasure.state != FINAL))
        waiting = (Job.kind == Erase.kind, Job.state == "queued", Job.body["erasure"].as_string() == oldest)
        soon = now() + FIRST_DELAY_SECONDS
        session.execute(update(Job).where(*waiting, Job.not_before > soon).values(not_before=soon))


def _read(context: JobContext, erasure_id: str) -> Erasure | None:
    with reading(context.resources.database) as session:
        return session.get(Erasure, erasure_id)
