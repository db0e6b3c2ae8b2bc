"""Keep atlases up to date: find those that their gallery or their job has left behind, and enqueue their update."""

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from app.db.tables import Atlas, Collection, Deployment, Job, StoredCompensation, now
from app.queue.jobs import LIVE_STATES, enqueue, find_highest
from app.queue.messages import DrawAtlas

RETRY_SECONDS = 3_600.0
"""After an update that failed or was cancelled."""


def list_outdated_atlases(session: Session) -> list[Atlas]:
    """List the atlases that another model, another source compensation or other faces have left behind.

    Of a deployment without a finished atlas, the newest one is listed: an update deletes what is not being drawn.
    """
    return [*session.scalars(_select_outdated_atlases()), *session.scalars(_select_unfinished_atlases())]


def enqueue_update(session: Session, atlas: Atlas) -> bool:
    """Enqueue an update of an atlas, unless it is being drawn. Returns whether it was enqueued."""
    update = DrawAtlas(
        collection=atlas.collection_id, task=atlas.task, method=atlas.method, seed=atlas.seed, only_update=True
    )  # fmt: skip
    last_id = find_highest(session, Job.id, Job.lock == update.lock)
    last = None if last_id is None else session.get(Job, last_id)
    if last is not None and (last.state in LIVE_STATES or _has_failed_lately(last)):
        return False
    enqueue(session, update)
    return True


def _has_failed_lately(job: Job) -> bool:
    """Whether a job is an update that failed or was cancelled within `RETRY_SECONDS`."""
    has_failed = bool(job.body.get("only_update")) and job.state in ("failed", "cancelled")
    return has_failed and 0 <= now() - (job.finished_at or 0.0) < RETRY_SECONDS


def _select_unfinished_atlases() -> Select[Atlas]:
    newest = select(func.max(Atlas.pk)).group_by(Atlas.collection_id, Atlas.task)
    unfinished = newest.having(func.count(Atlas.finished_at) == 0)
    return select(Atlas).where(Atlas.pk.in_(unfinished)).order_by(Atlas.pk)


def _select_outdated_atlases() -> Select[Atlas]:
    newest = select(func.max(Atlas.pk)).where(Atlas.finished_at.is_not(None)).group_by(Atlas.collection_id, Atlas.task)
    is_here = (Deployment.collection_id == Atlas.collection_id) & (Deployment.task == Atlas.task)
    is_compensation = (
        (StoredCompensation.collection_id == Atlas.collection_id)
        & (StoredCompensation.task == Atlas.task)
        & (StoredCompensation.model_id == Deployment.champion)
    )
    return (
        select(Atlas)
        .join(Collection, Collection.id == Atlas.collection_id)
        .join(Deployment, is_here)
        .outerjoin(StoredCompensation, is_compensation)
        .where(
            Atlas.pk.in_(newest),
            or_(
                Atlas.model_id != Deployment.champion,
                Atlas.compensation != func.coalesce(StoredCompensation.version, 0),
                Atlas.change < Collection.change,
            ),
        )
        .order_by(Atlas.pk)
    )
