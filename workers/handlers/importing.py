"""An archive becomes items, the items batches; the import ends when the serving indexes hold what it brought, and what
is learned and measured by itself has been."""

from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import delete, exists, func, insert, select, update
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Face, Follower, Job, JobItem, now
from app.errors import AppError, Invalid, NotFound
from app.queue import jobs
from app.queue.messages import FitFirst, ImportArchive, IngestBatch, Publish
from app.serving import gallery_calibration
from workers.context import Interrupted, JobContext, Later
from workers.handlers.listing import items

MOST, FEWEST = 256, 32  # photos of one part
PARTS = 8  # a part is so much of what is left, so that the workers come to an end together
WAITING = 12  # parts that wait at a time, so that other work gets its turn
LOOK = 0.2
SETTLING = 60.0  # seconds at most for what is measured and learned of the gallery by itself
RECENT = 15.0  # seconds within which a follower that lives was seen
ROWS = 2_000


def import_archive(message: ImportArchive, context: JobContext) -> dict[str, Any]:
    """Goes on wherever an earlier run of it stopped. Raises Invalid, TooLarge, NotFound; nothing is kept then."""
    try:
        with reading(context.resources.database) as session:
            listed = session.get_one(Job, context.job_id).total is not None
        if not listed:
            _list(message, context)
        result = _advance(message, context)
    except AppError as error:
        if not error.retryable:
            _clear(message)
        raise
    _clear(message)
    return result


def _list(message: ImportArchive, context: JobContext) -> None:
    """One item for each file; the total is written last and says that all are there."""
    database, job = context.resources.database, context.job_id
    with writing(database) as session:
        session.execute(delete(JobItem).where(JobItem.job_id == job))
    entries = items(Path(message.path), context)
    number = 0
    while rows := [_item(job, n, row) for n, row in enumerate(islice(entries, ROWS), number)]:
        context.check()
        with writing(database) as session:
            session.execute(insert(JobItem), rows)
        number += len(rows)
    if not number:
        raise Invalid("the archive is refused: it holds no file", code="InvalidArchive")
    with writing(database) as session:
        session.execute(update(Job).where(Job.id == job).values(total=number, tries=1))


def _item(job: str, number: int, row: dict[str, Any]) -> dict[str, Any]:
    return {"job_id": job, "number": number, "name": row["name"], "state": "queued", "detail": row["detail"]}


def _advance(message: ImportArchive, context: JobContext) -> dict[str, Any]:
    """The next parts, or the result. Raises Later, Interrupted."""
    context.check()
    with writing(context.resources.database) as session:
        job = session.get_one(Job, context.job_id, with_for_update=True)
        if job.cancel:
            raise Interrupted
        collection = session.get(Collection, message.collection)
        if collection is None:
            raise NotFound(f"the collection {message.collection!r} was deleted")
        job.tries = 1  # it moves: no death counts against it
        waiting = _parts(session, job)
        change: int = (job.result or {}).get("change", -1)
        if not waiting and change < 0:
            if job.result is None:
                _close(session, job.id)
                job.result = {"closed_at": now()}
            if _settled(session, collection.id, job.result["closed_at"]):
                change = collection.change
                job.result = {"change": change}
    if change < 0 or not _followed(context, message.collection, change):
        context.resources.notifier.notify("jobs")
        raise Later(LOOK)
    return _result(context, change)


def _parts(session: Session, job: Job) -> bool:
    """Keeps some parts waiting; whether any is still to be done. A part whose workers died is taken up again."""
    children = Job.parent_id == job.id
    lost = update(Job).where(children, Job.state == "failed")
    lost = lost.where(Job.problem["code"].as_string() == "WorkerLost")
    session.execute(lost.values(state="queued", tries=1, worker=None, problem=None, finished_at=None))
    live = session.scalar(select(func.count()).where(children, Job.state.in_(jobs.LIVE_STATES))) or 0
    first = session.scalar(select(func.max(Job.body["last"].as_integer())).where(children)) or 0
    while live < WAITING and first < (job.total or 0):
        last = _last(first, job.total or 0)
        jobs.enqueue(session, IngestBatch(job=job.id, first=first, last=last), parent=job.id)
        first, live = last, live + 1
    return live > 0


def _last(first: int, total: int) -> int:
    """Where the part ends that begins there."""
    return min(total, first + min(MOST, max(FEWEST, (total - first) // PARTS)))


def _close(session: Session, job: str) -> None:
    """What a part left behind that could not be done at all is refused with its reason."""
    left = update(JobItem).where(JobItem.job_id == job, JobItem.state == "queued")
    session.execute(left.values(state="failed", detail={"reasons": ["PART_FAILED"]}))
    counts = dict(session.execute(_counts(job)).all())
    done, failed = counts.get("done", 0), counts.get("failed", 0)
    session.execute(update(Job).where(Job.id == job).values(done=done, failed=failed))


def _counts(job: str) -> Any:
    return select(JobItem.state, func.count()).where(JobItem.job_id == job).group_by(JobItem.state)


def _settled(session: Session, collection: str, closed_at: float) -> bool:
    """Whether the models that serve were learned and measured on what came, as far as that happens by itself."""
    serving = Follower.seen_at > now() - RECENT, Follower.collection_id == collection
    if now() - closed_at > SETTLING or session.scalar(select(Follower.process).where(*serving).limit(1)) is None:
        return True
    coming = select(Job.id).where(Job.kind.in_((FitFirst.kind, Publish.kind)), Job.state.in_(jobs.LIVE_STATES))
    if session.scalar(coming.where(Job.body["collection"].as_string() == collection).limit(1)) is not None:
        return False
    faces = session.scalar(select(func.count()).where(Face.collection_id == collection)) or 0
    deployments = session.scalars(select(Deployment).where(Deployment.collection_id == collection))
    measured = (d.measurements.get(d.champion, {}).get("faces", 0) for d in deployments)
    return not any(gallery_calibration.needs_recalibration(faces, on, is_idle=True) for on in measured)


def _followed(context: JobContext, collection: str, change: int) -> bool:
    """Whether every process that serves the collection holds this change."""
    behind = exists().where(
        Follower.collection_id == collection, Follower.seen_at > now() - RECENT, Follower.change < change
    )
    with reading(context.resources.database) as session:
        return not session.scalar(select(behind))


def _result(context: JobContext, change: int) -> dict[str, Any]:
    with reading(context.resources.database) as session:
        job = session.get_one(Job, context.job_id)
        seconds = round(now() - (job.started_at or now()), 3)
        return {"enrolled": job.done, "refused": job.failed, "seconds": seconds, "change": change}


def _clear(message: ImportArchive) -> None:
    if message.remove_after:
        Path(message.path).unlink(missing_ok=True)
