"""Remove what snapshots that were never finished have left."""

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

    Returns how many folders were removed. Complete snapshots stay, also those that no row names.
    """
    live = select(Job.body).where(Job.kind == TakeSnapshot.kind, Job.state.in_(LIVE_STATES))
    with reading(resources.database) as session:
        written = {body["snapshot"] for body in session.scalars(live)}
    removed = 0
    for folder in list_snapshot_folders(resources.settings.home):
        is_old = folder.stat().st_mtime < now() - ORPHAN_SECONDS
        if get_snapshot_id(folder) not in written and is_old and not is_complete(folder):
            delete_folder(folder)
            removed += 1
    unfinished = (KeptSnapshot.finished_at.is_(None), KeptSnapshot.created_at < now() - DAY_SECONDS)
    with writing(resources.database) as session:
        session.execute(delete(KeptSnapshot).where(*unfinished, KeptSnapshot.id.not_in(written)))
    return removed
