"""Remove what restores have left that were killed, or failed: the ids that they reserved, and their files."""

from pathlib import Path

from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Job
from app.errors import Conflict
from app.queue.jobs import LIVE_STATES
from app.queue.messages import RestoreSnapshot
from app.resources import Resources
from app.snapshots.reservations import LOCK_FOLDER, SERVICE, is_name_locked, lock_name, release_untouched
from workers.cleanup.stored_files import remove_late_files
from workers.context import JobContext


def remove_unfinished_restores(context: JobContext) -> bool:
    """Remove what no restore needs any more. Returns False if a command restores now: it may hold what is erased.

    A job that restores holds up the erasures of its collection itself; its files are left to it. Raises Interrupted.
    """
    resources = context.resources
    if is_name_locked(resources.settings.home, SERVICE):
        return False
    live = _list_live(resources)
    for name in sorted(_list_unfinished(resources) - live):
        remove_restored(context, name)
    return not _list_locked(resources.settings.home) - live


def remove_restored(context: JobContext, name: str) -> None:
    """Free the id that a restore has reserved, unless something was written to it, and remove its files.

    Files that rows name stay, and so does everything while another restore uses the id. Raises Interrupted.
    """
    try:
        with lock_name(context.resources.settings.home, name):
            with writing(context.resources.database) as session:
                release_untouched(session, name)
            remove_late_files(context, name)
    except Conflict:
        return


def _list_live(resources: Resources) -> set[str]:
    """List the collections that jobs restore, or will."""
    live = select(Job.body).where(Job.kind == RestoreSnapshot.kind, Job.state.in_(LIVE_STATES))
    with reading(resources.database) as session:
        return {body["collection"] for body in session.scalars(live)}


def _list_unfinished(resources: Resources) -> set[str]:
    """List the collections that have no deployment, as all others do, and those that have files and no row."""
    with reading(resources.database) as session:
        collections = dict(session.execute(select(Collection.id, Collection.is_deleted)).all())
        served = set(session.scalars(select(Deployment.collection_id)))
    deleted = {name for name, is_deleted in collections.items() if is_deleted}
    return (collections.keys() | set(resources.blobs.collections())) - served - deleted


def _list_locked(home: Path) -> set[str]:
    """List the collections that a process restores now."""
    names = (path.name.removesuffix(".lock") for path in (home / LOCK_FOLDER).glob("*.lock"))
    return {name for name in names if is_name_locked(home, name)}
