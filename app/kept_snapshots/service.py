"""Start, list, delete and restore snapshots that are kept in the home."""

from fastapi import Response
from sqlalchemy import delete, event, func, or_, select
from sqlalchemy.orm import Session

from app.config import Settings
from app.db.lookups import get_collection, get_row
from app.db.session import writing
from app.db.tables import Collection, Job, KeptSnapshot
from app.deps.caller import Caller
from app.deps.job_response import JobOut, point_to_job
from app.deps.paging import Order, read_page
from app.errors import Busy, Conflict, Forbidden, Invalid
from app.kept_snapshots.schemas import RestoreIn, SnapshotIn, SnapshotOut, SnapshotStarted
from app.queue.jobs import LIVE_STATES, enqueue
from app.queue.messages import RestoreSnapshot, TakeSnapshot
from app.resources import Resources
from app.storage.audit_log.notes import note_audited
from app.storage.snapshot_folders import delete_folder, list_folders_of

ALL_SNAPSHOTS = {"all_rows": True}
COUNT_LOCK = 5643873
"""Number of the advisory lock on PostgreSQL under which snapshots are counted and added."""


def start_snapshot(
    session: Session, settings: Settings, body: SnapshotIn, caller: Caller, response: Response
) -> SnapshotStarted:
    """Enqueue the job that writes a snapshot. Raises NotFound, Invalid, or Conflict if too many are kept."""
    if body.collection is not None:
        get_collection(session, body.collection)
    elif caller.collections:
        raise Invalid(f"name a collection: this key is bound to {', '.join(caller.collections)}")
    _check_count(session, settings.max_snapshots)
    row = KeptSnapshot(collection_id=body.collection)
    session.add(row)
    session.flush()
    job = enqueue(session, TakeSnapshot(snapshot=row.id, collection=body.collection))
    row.job_id = job.id
    note_audited(session, [body.collection], f"snapshot:{row.id}")
    point_to_job(response, job)
    return SnapshotStarted(**JobOut.of(job).model_dump(), snapshot=row.id)


def _check_count(session: Session, limit: int) -> None:
    """Check that another snapshot may be kept, those of other collections counted. Raises Conflict.

    On PostgreSQL, one transaction at a time counts and adds its own; on SQLite, there is one writer anyway.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(COUNT_LOCK)))
    is_live = select(Job.id).where(Job.id == KeptSnapshot.job_id, Job.state.in_(LIVE_STATES)).exists()
    kept = select(func.count()).select_from(KeptSnapshot).where(or_(KeptSnapshot.finished_at.is_not(None), is_live))
    if (session.scalar(kept, execution_options=ALL_SNAPSHOTS) or 0) >= limit:
        raise Conflict(
            f"{limit} snapshots are kept, as many as LIKENESS_MAX_SNAPSHOTS allows; delete one first",
            code="TooManySnapshots",
        )


def list_snapshots(
    session: Session, collection: str | None, order: Order, limit: int, token: str | None
) -> tuple[list[SnapshotOut], str | None]:
    """List one page of snapshots. collection: only those of it alone; None: all. Raises Invalid for a wrong token."""
    where = [KeptSnapshot.collection_id == collection] if collection else []
    rows, next_token = read_page(session, KeptSnapshot, KeptSnapshot.id, limit, token, *where, order=order)
    jobs = {job.id: job for job in session.scalars(select(Job).where(Job.id.in_([row.job_id for row in rows])))}
    return [SnapshotOut.of(row, jobs.get(row.job_id or "")) for row in rows], next_token


def get_snapshot(session: Session, snapshot: str) -> SnapshotOut:
    """Return a snapshot. Raises NotFound."""
    row = get_row(session, "snapshot", snapshot)
    return SnapshotOut.of(row, session.get(Job, row.job_id) if row.job_id else None)


def delete_snapshot(session: Session, resources: Resources, snapshot: str) -> None:
    """Delete a snapshot, and its files after the commit. Raises NotFound, or Conflict while its job runs.

    Until the files are gone, its row says that it failed: if the process ends before, a sweep removes both.
    """
    row: KeptSnapshot = get_row(session, "snapshot", snapshot)
    note_audited(session, [row.collection_id])
    if get_snapshot(session, snapshot).state in ("queued", "writing"):
        raise Conflict(f"the snapshot is being written; cancel its job {row.job_id} first")
    row.finished_at = row.job_id = None
    event.listen(session, "after_commit", lambda _: _delete_files(resources, snapshot), once=True)


def _delete_files(resources: Resources, snapshot: str) -> None:
    """Delete the files of a snapshot that nobody can use any more, then its row. Raises Busy if some cannot be deleted.

    No other writer waits meanwhile: to free a large file takes seconds.
    """
    try:
        for folder in list_folders_of(resources.settings.home, snapshot):
            delete_folder(folder)
    except OSError as error:
        raise Busy(
            "the snapshot is deleted, but not all of its files: repeat the request, or wait for a sweep"
        ) from error
    with writing(resources.database) as session:
        session.execute(delete(KeptSnapshot).where(KeptSnapshot.id == snapshot))


def start_restore(session: Session, snapshot: str, body: RestoreIn, caller: Caller, response: Response) -> JobOut:
    """Enqueue the restore of one collection under a free name. Raises NotFound, Forbidden, Invalid, Conflict."""
    row: KeptSnapshot = get_row(session, "snapshot", snapshot)
    source = body.collection or row.collection_id
    if source is None:
        raise Invalid("name the collection: the snapshot holds the whole service")
    note_audited(session, [source, body.name])
    if row.collection_id not in (None, source):
        raise Invalid(f"the snapshot holds the collection {row.collection_id!r} alone")
    if caller.collections and body.name not in caller.collections:
        raise Forbidden(f"this key is bound to {', '.join(caller.collections)} and cannot create other collections")
    if row.finished_at is None:
        raise Conflict("the snapshot is not ready")
    if session.get(Collection, body.name) is not None:
        raise Conflict(f"the collection {body.name!r} exists; choose another name")
    message = RestoreSnapshot(snapshot=row.id, source=source, collection=body.name, new_face_ids=body.face_ids == "new")
    job = enqueue(session, message)
    point_to_job(response, job)
    return JobOut.of(job)
