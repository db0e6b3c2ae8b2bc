"""Import an archive: list its files, enqueue batches of them, and end once the serving indexes hold the new faces."""

from pathlib import Path
from typing import Any

from app.db.session import writing
from app.db.tables import Collection, Job, now
from app.errors import AppError, NotFound
from app.queue.messages import ImportArchive
from workers.context import Interrupted, JobContext, Later
from workers.importing.archive_listing import has_listing, list_archive
from workers.importing.batches import enqueue_batches, fail_remaining_items
from workers.importing.completion import are_models_current, have_followers_caught_up, summarise_import

POLL_SECONDS = 0.2


def import_archive(message: ImportArchive, context: JobContext) -> dict[str, Any]:
    """Continue an import where an earlier run stopped: {"enrolled", "refused", "seconds", "change"}.

    Raises Later until the import has ended, Interrupted, and Invalid, TooLarge or NotFound, which remove the archive.
    """
    try:
        if not has_listing(context):
            list_archive(Path(message.path), context)
        change = _advance(message, context)
        if change is None or not have_followers_caught_up(context, message.collection, change):
            context.resources.notifier.notify("jobs")
            raise Later(POLL_SECONDS)
        result = summarise_import(context, change)
    except AppError as error:
        if not error.retryable:
            _remove_archive(message)
        raise
    _remove_archive(message)
    return result


def _advance(message: ImportArchive, context: JobContext) -> int | None:
    """Enqueue the next batches. Returns the collection's change number once all are done, else None.

    Raises Interrupted, NotFound (the collection).
    """
    context.check()
    with writing(context.resources.database) as session:
        job = session.get_one(Job, context.job_id, with_for_update=True)
        if job.cancel:
            raise Interrupted
        collection = session.get(Collection, message.collection)
        if collection is None:
            raise NotFound(f"the collection {message.collection!r} was deleted")
        job.tries = 1  # the import makes progress: an earlier death of a worker no longer counts
        has_batches = enqueue_batches(session, job)
        if has_batches or "change" in (job.result or {}):
            return (job.result or {}).get("change")
        if job.result is None:
            fail_remaining_items(session, job.id)
            job.result = {"closed_at": now()}
        if not are_models_current(session, collection.id, job.result["closed_at"]):
            return None
        job.result = {"change": collection.change}
        return collection.change


def _remove_archive(message: ImportArchive) -> None:
    if message.remove_after:
        Path(message.path).unlink(missing_ok=True)
