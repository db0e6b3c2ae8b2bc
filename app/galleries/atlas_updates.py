"""Keep atlases up to date: find those that their gallery has left behind, and enqueue their update."""

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from app.db.tables import Atlas, Collection, Deployment, Job, StoredCompensation, now
from app.queue.jobs import LIVE_STATES, enqueue
from app.queue.messages import DrawAtlas

RETRY_SECONDS = 3_600.0
"""After an update that failed or was cancelled."""


def enqueue_updates(session: Session) -> int:
    """Enqueue an update of each atlas that is behind, unless one is on its way. Returns how many were enqueued."""
    count = 0
    for atlas in session.scalars(_select_outdated_atlases()):
        update = DrawAtlas(
            collection=atlas.collection_id, task=atlas.task, method=atlas.method, seed=atlas.seed, only_update=True
        )  # fmt: skip
        last = session.scalar(select(Job).where(Job.lock == update.lock).order_by(Job.id.desc()).limit(1))
        has_failed = last is not None and last.state in ("failed", "cancelled")
        is_recent = last is not None and (last.finished_at or 0.0) > now() - RETRY_SECONDS
        if last is None or not (last.state in LIVE_STATES or (has_failed and is_recent)):
            enqueue(session, update)
            count += 1
    return count


def _select_outdated_atlases() -> Select[Atlas]:
    """Select the atlases that another model, another source compensation or other faces have left behind."""
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
