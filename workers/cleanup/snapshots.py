"""Remove what snapshots that were never finished have left."""

from contextlib import suppress

from sqlalchemy import delete, select

from app.db.session import reading, writing
from app.db.tables import Job, KeptSnapshot, now
from app.queue.jobs import LIVE_STATES
from app.queue.messages import TakeSnapshot
from app.resources import Resources
from app.storage.snapshot_folders import delete_folder, get_snapshot_id, is_complete, list_snapshot_folders
from workers.cleanup.steps import ORPHAN_SECONDS

DAY_SECONDS = 86_400.0


def remove_unfinished_snapshots(resources: Resources) -> int:
    """Remove unfinished folders without a job, and after a day the rows of snapshots that failed or were cancelled.

    Returns how many folders were removed. A folder is unfinished if it is not complete, or if its row says so, as where
    a deletion was interrupted. Complete snapshots that no row names stay.
    """
    live = select(Job.body).where(Job.kind == TakeSnapshot.kind, Job.state.in_(LIVE_STATES))
    with reading(resources.database) as session:
        written = {body["snapshot"] for body in session.scalars(live)}  # first: a job ends when its row is finished
        unfinished = set(session.scalars(select(KeptSnapshot.id).where(KeptSnapshot.finished_at.is_(None))))
    removed, kept = 0, set(written)
    for folder in list_snapshot_folders(resources.settings.home):
        with suppress(FileNotFoundError):  # it was deleted meanwhile
            snapshot, is_old = get_snapshot_id(folder), folder.stat().st_mtime < now() - ORPHAN_SECONDS
            if snapshot not in written and is_old and (snapshot in unfinished or not is_complete(folder)):
                delete_folder(folder)
                removed += 1
            else:
                kept.add(snapshot)
    is_unfinished = (KeptSnapshot.finished_at.is_(None), KeptSnapshot.created_at < now() - DAY_SECONDS)
    with writing(resources.database) as session:
        session.execute(delete(KeptSnapshot).where(*is_unfinished, KeptSnapshot.id.not_in(kept)))
    return removed
