"""Erase from the snapshots in the home what is erased in the service."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Job, KeptSnapshot, now
from app.errors import NotFound
from app.galleries.erased_names import ErasedNames
from app.queue.jobs import LIVE_STATES
from app.queue.messages import TakeSnapshot
from app.resources import Resources
from app.snapshots.erasure import SnapshotErasure, erase_from_snapshot
from app.storage.snapshot_folders import delete_folder, get_snapshot_id, is_complete, list_snapshot_folders
from workers.context import JobContext

Counts = dict[str, dict[str, int]]
"""Erasure id -> {"snapshots_rewritten", "snapshots_deleted"}."""


def erase_from_kept_snapshots(context: JobContext, erased: Sequence[ErasedNames]) -> Counts:
    """Erase from every snapshot in the home, whether a row names it or not. Raises Interrupted, Busy, OSError.

    What an interrupted snapshot has left is deleted. One that is being written is not touched: it began after these
    erasures were requested, or they would wait for it.
    """
    resources = context.resources
    rewritten, deleted = Counter[str](), Counter[str]()
    for folder in list_snapshot_folders(resources.settings.home) if erased else ():
        context.check()
        if is_complete(folder):
            with suppress(NotFound, FileNotFoundError):  # somebody began to delete it meanwhile
                outcome = erase_from_snapshot(folder, erased, context.check, context.check_lease)
                (deleted if outcome.manifest is None else rewritten).update(outcome.erasures)
                _record(resources, folder, outcome)
        if not is_complete(folder) and get_snapshot_id(folder) not in _list_live(resources):
            delete_folder(folder)
    return {
        one.erasure_id: {
            "snapshots_rewritten": rewritten[one.erasure_id],
            "snapshots_deleted": deleted[one.erasure_id],
        }
        for one in erased
    }


def _list_live(resources: Resources) -> set[str]:
    """List the ids of the snapshots that are being written, or will be."""
    live = select(Job.body).where(Job.kind == TakeSnapshot.kind, Job.state.in_(LIVE_STATES))
    with reading(resources.database) as session:
        return {body["snapshot"] for body in session.scalars(live)}


def _record(resources: Resources, folder: Path, outcome: SnapshotErasure) -> None:
    """Record in the row of a snapshot, if it has one, what it holds now."""
    if not outcome.erasures:
        return
    with writing(resources.database) as session:
        row = session.get(KeptSnapshot, folder.name, with_for_update=True)
        if row is not None and outcome.manifest is None:
            session.delete(row)
        elif row is not None and outcome.manifest is not None:
            row.erased_at = now()
            row.faces = outcome.manifest.rows["faces"]
            row.files, row.bytes = outcome.manifest.files, outcome.manifest.bytes
