"""Write a snapshot into the home, and restore a collection from one."""

import time
from contextlib import ExitStack
from typing import Any

from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Collection, Job, KeptSnapshot, now
from app.errors import AppError, Conflict, NotFound, OutcomeUnknown
from app.queue.messages import RestoreSnapshot, TakeSnapshot
from app.snapshots.collection_restore import RestoreOptions, restore_collection
from app.snapshots.erasure import STILL_ERASING, list_pending_erasures
from app.snapshots.manifest import SnapshotManifest
from app.snapshots.reservations import keep_others_out
from app.snapshots.restore import Restored
from app.snapshots.rows import Report
from app.snapshots.writer import write_snapshot
from app.storage.snapshot_folders import (
    delete_folder,
    list_folders_of,
    locate_snapshot,
    refuse_full_disk,
    stage_snapshot,
)
from ml.files import move_folder
from workers.context import Interrupted, JobContext, Later
from workers.erasing.unfinished_restores import remove_restored

PROGRESS_SECONDS = 0.5
RETRY_SECONDS = 2.0
NAME_STILL_ERASED = (
    "a collection of the new name was deleted, and is still being erased: restore it again once no erasure is pending "
    "(GET /v1/erasures)"
)


def take_snapshot(message: TakeSnapshot, context: JobContext) -> dict[str, Any]:
    """Write the snapshot: {"snapshot", "faces", "files", "bytes", "missing"}. A second run begins anew, if need be.

    If it fails, nothing of it is left, unless another worker has the job by now: then the folder may be that one's.
    Raises NotFound, Conflict if the disk is too small, Interrupted.
    """
    resources = context.resources
    home = resources.settings.home
    with reading(resources.database) as session:
        row = _get_snapshot(session, message.snapshot)
    final = locate_snapshot(home, row.id)
    if row.finished_at is not None:
        return _describe_snapshot(row, SnapshotManifest.read(final))
    for left in list_folders_of(home, row.id):
        context.check_lease()
        delete_folder(left)
    folder = stage_snapshot(home, row.id)
    try:
        with refuse_full_disk():
            manifest = write_snapshot(resources.database, home, folder, message.collection, _make_report(context))
            context.check_lease()
            move_folder(folder, final)
        folder = final
        with writing(resources.database) as session:
            row = _get_snapshot(session, row.id)
            row.finished_at = now()
            row.faces, row.files, row.bytes = manifest.rows["faces"], manifest.files, manifest.bytes
    except OutcomeUnknown:  # the snapshot may be finished: the second run sees
        raise
    except BaseException:
        if folder != final or context.has_job():
            delete_folder(folder)
        raise
    return _describe_snapshot(row, manifest)


def _get_snapshot(session: Session, snapshot_id: str) -> KeptSnapshot:
    """Return the row of a snapshot. Raises NotFound if it was deleted since its job was enqueued."""
    row = session.get(KeptSnapshot, snapshot_id)
    if row is None:
        raise NotFound(f"the snapshot {snapshot_id} was deleted")
    return row


def _describe_snapshot(row: KeptSnapshot, manifest: SnapshotManifest) -> dict[str, Any]:
    contents = {"faces": row.faces, "files": row.files, "bytes": row.bytes}
    return {"snapshot": row.id, "missing": manifest.missing} | contents


def restore_snapshot(message: RestoreSnapshot, context: JobContext) -> dict[str, Any]:
    """Restore the collection: {"collection", "faces", "files"}. A second run ends what the first has begun.

    If it fails, nothing of it is left, but for what others have written to the collection.
    Raises NotFound, Conflict, Invalid, Busy, Interrupted.
    """
    with reading(context.resources.database) as session:
        done: dict[str, Any] | None = session.get_one(Job, context.job_id).result
    if done:
        return done
    try:
        with reading(context.resources.database) as session:
            _get_snapshot(session, message.snapshot)
        _wait_for_erasures(message, context)
        restored = _restore(message, context)
    except AppError:
        remove_restored(context, message.collection)
        raise
    context.resources.notifier.notify("changes")
    return _describe(message, restored)


def _restore(message: RestoreSnapshot, context: JobContext) -> Restored:
    resources, home = context.resources, context.resources.settings.home

    def finish(session: Session, restored: Restored) -> None:
        job = session.get_one(Job, context.job_id, with_for_update=True)
        if job.cancel:
            raise Interrupted
        job.result = _describe(message, restored)

    options = RestoreOptions(message.new_face_ids, finish)
    with ExitStack() as stack:
        try:
            stack.enter_context(keep_others_out(resources.database, home, message.collection))
        except Conflict as error:  # a worker that has lost this job has not noticed yet
            raise Later(RETRY_SECONDS) from error
        stack.enter_context(refuse_full_disk())
        folder = locate_snapshot(home, message.snapshot)
        return restore_collection(
            resources.database, home, folder, message.source, message.collection, _make_report(context), options
        )


def _wait_for_erasures(message: RestoreSnapshot, context: JobContext) -> None:
    """Wait until what was deleted in the collection before is erased from its snapshots too.

    So is what was deleted in an earlier collection of the new name: its erasure removes the files that no row names.
    Raises Later, or Conflict if the erasure itself waits for the end of this job: see `find_blocker`.
    """
    database, is_pending = context.resources.database, False
    for name, refusal in ((message.source, STILL_ERASING), (message.collection, NAME_STILL_ERASED)):
        with writing(database) as session:  # a deletion that is being carried out is committed by then
            session.get(Collection, name, with_for_update=True)
        with reading(database) as session:
            pending = list_pending_erasures(session, name)
            started_at = session.get_one(Job, context.job_id).started_at
        if started_at is not None and any(until >= started_at for until in pending):
            raise Conflict(refusal)
        is_pending |= bool(pending)
    if is_pending:
        raise Later(RETRY_SECONDS)


def _describe(message: RestoreSnapshot, restored: Restored) -> dict[str, Any]:
    return {"collection": message.collection, "faces": restored.faces, "files": restored.files}


def _make_report(context: JobContext) -> Report:
    """Return what stores the progress of the files, and raises Interrupted."""
    reported_at = 0.0

    def report(step: str, done: int, total: int | None) -> None:
        nonlocal reported_at
        context.check()
        if step == "files" and (done == total or time.monotonic() - reported_at > PROGRESS_SECONDS):
            reported_at = time.monotonic()
            context.progress(done, total)

    return report
