"""Import an archive: list its files, enqueue batches of them, and end once the serving indexes hold the new faces."""

from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from app.db.session import reading, writing
from app.db.tables import Collection, Job, now
from app.errors import Busy, NotFound
from app.queue.messages import ImportArchive
from app.serving.reporter import have_followers_caught_up
from workers.context import Interrupted, JobContext, Later
from workers.importing.archive_listing import has_listing, list_archive
from workers.importing.batches import close_items, enqueue_batches
from workers.importing.completion import are_models_current, summarise_import

POLL_SECONDS = 0.2


def import_archive(message: ImportArchive, context: JobContext) -> dict[str, Any]:
    """Continue an import where an earlier run stopped: {"enrolled", "refused", "seconds", "change"}.

    Raises Later until the import has ended, Interrupted, and Busy or OperationalError if it may succeed later. Any
    other error ends the import, and removes the archive.
    """
    try:
        if not has_listing(context):
            list_archive(Path(message.path), context)
        change = _advance(message, context)
        if change is None or not _is_served(message, context, change):
            context.resources.notifier.notify("jobs")
            raise Later(POLL_SECONDS)
        result = summarise_import(context, change)
    except Exception as error:
        if not isinstance(error, (Later, Interrupted, Busy, OperationalError)):
            _remove_archive(message, context)
        raise
    _remove_archive(message, context)
    return result


def _is_served(message: ImportArchive, context: JobContext, change: int) -> bool:
    with reading(context.resources.database) as session:
        return have_followers_caught_up(session, message.collection, change)


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
        state = job.result or {}
        if has_batches or "change" in state:
            return state.get("change")
        if "closed_at" not in state:
            job.result = state = {"closed_at": now(), "photo_failures": close_items(session, job.id)}
        if not are_models_current(session, collection.id, state["closed_at"]):
            return None
        job.result = {"change": collection.change, "photo_failures": state.get("photo_failures", 0)}
        return collection.change


def _remove_archive(message: ImportArchive, context: JobContext) -> None:
    """Remove the archive, unless another worker has the import by now, and may be reading it. Raises Interrupted."""
    context.check_lease()
    if message.remove_after:
        Path(message.path).unlink(missing_ok=True)
