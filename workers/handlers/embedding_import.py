"""Import a file of vectors: enrol its rows in batches, and end once the serving indexes hold the new faces."""

import time
from pathlib import Path
from typing import Any

from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from app.db.lookups import get_collection
from app.db.session import reading, writing
from app.db.tables import Job, now
from app.enrolment.vectors.npy_file import NpyFile, open_npy
from app.enrolment.vectors.row_table import RowTable
from app.errors import Busy
from app.queue.messages import ImportEmbeddings
from app.serving.reporter import have_followers_caught_up
from workers.context import Interrupted, JobContext, Later
from workers.importing.vector_batches import VectorImport

POLL_SECONDS = 0.2
MAX_TURN_SECONDS = 5.0
"""How long one run enrols before it lets other jobs run."""


def import_embeddings(message: ImportEmbeddings, context: JobContext) -> dict[str, Any]:
    """Continue an import where an earlier run stopped: {"enrolled", "refused", "seconds", "change"}.

    Raises Later until the import has ended, Interrupted, and Busy or OperationalError if it may succeed later. Any
    other error ends the import, and removes the files.
    """
    try:
        change = _read_change(context)
        if change is None:
            change = _enrol(message, context)
        with reading(context.resources.database) as session:
            if not have_followers_caught_up(session, message.collection, change):
                raise Later(POLL_SECONDS)
        result = _summarise(context, change)
    except Exception as error:
        if not isinstance(error, (Later, Interrupted, Busy, OperationalError)):
            _remove_files(message, context)
        raise
    _remove_files(message, context)
    return result


def _enrol(message: ImportEmbeddings, context: JobContext) -> int:
    """Enrol the rows, and return the collection's change number once all are enrolled. Raises Later, Interrupted."""
    vectors = open_npy(Path(message.path), context.resources.settings.max_import_entries)
    table = None if message.table is None else RowTable(Path(message.table))
    _start(context, vectors, table)
    until = time.monotonic() + MAX_TURN_SECONDS
    for done in VectorImport(context, message.collection, vectors, table).iterate_batches():
        if done < vectors.count and time.monotonic() > until:
            raise Later(0.0)
    with writing(context.resources.database) as session:
        change = get_collection(session, message.collection).change
        session.execute(update(Job).where(Job.id == context.job_id).values(result={"change": change}))
    context.resources.notifier.notify("changes")
    return change


def _start(context: JobContext, vectors: NpyFile, table: RowTable | None) -> None:
    """Check the table once, before the first row is enrolled. The total, stored last, says so. Raises Invalid."""
    with reading(context.resources.database) as session:
        if session.get_one(Job, context.job_id).total is not None:
            return
    if table is not None:
        table.check(vectors.count)
    context.check()
    first = update(Job).where(Job.id == context.job_id, Job.total.is_(None))
    with writing(context.resources.database) as session:  # another run may have begun: what it has enrolled counts
        session.execute(first.values(total=vectors.count))


def _read_change(context: JobContext) -> int | None:
    """Return the change number that an earlier run has stored after the last row."""
    with reading(context.resources.database) as session:
        change: int | None = (session.get_one(Job, context.job_id).result or {}).get("change")
        return change


def _summarise(context: JobContext, change: int) -> dict[str, Any]:
    with reading(context.resources.database) as session:
        job = session.get_one(Job, context.job_id)
        seconds = round(now() - (job.started_at or now()), 3)
        return {"enrolled": job.done, "refused": job.failed, "seconds": seconds, "change": change}


def _remove_files(message: ImportEmbeddings, context: JobContext) -> None:
    """Remove the files, unless another worker has the import by now, and may be reading them. Raises Interrupted."""
    context.check_lease()
    for path in (message.path, message.table):
        if path is not None:
            Path(path).unlink(missing_ok=True)
