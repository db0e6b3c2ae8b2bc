"""Decide when an import has ended: the models that serve fit the larger gallery, and every index holds it."""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.session import reading
from app.db.tables import Deployment, Face, Follower, Job, now
from app.errors import Conflict
from app.queue import jobs
from app.queue.messages import FitFirst, Publish
from app.serving.calibration.schedule import needs_recalibration
from app.serving.reporter import is_alive
from workers.context import JobContext
from workers.importing.batches import PART_FAILED, count_reason

MAX_SETTLING_SECONDS = 60.0
"""How long an import waits for the service to train and measure by itself."""


def are_models_current(session: Session, collection: str, closed_at: float) -> bool:
    """Whether the service has trained and measured by itself what it will for the collection as it is now.

    True too where no process serves the collection, or the import was closed too long ago to wait any longer.
    """
    followers = is_alive(), Follower.collection_id == collection
    if now() - closed_at > MAX_SETTLING_SECONDS:
        return True
    if session.scalar(select(Follower.process).where(*followers).limit(1)) is None:
        return True
    live = select(Job.id).where(Job.kind.in_((FitFirst.kind, Publish.kind)), Job.state.in_(jobs.LIVE_STATES))
    if session.scalar(live.where(Job.body["collection"].as_string() == collection).limit(1)) is not None:
        return False
    faces = session.scalar(select(func.count()).where(Face.collection_id == collection)) or 0
    deployments = session.scalars(select(Deployment).where(Deployment.collection_id == collection))
    measured_on = (d.measurements.get(d.champion, {}).get("faces", 0) for d in deployments)
    return not any(needs_recalibration(faces, count, is_idle=True) for count in measured_on)


def summarise_import(context: JobContext, change: int) -> dict[str, Any]:
    """Return the result of the import's job. Raises Conflict if a batch failed, whose photos were not enrolled."""
    with reading(context.resources.database) as session:
        job = session.get_one(Job, context.job_id)
        lost = count_reason(session, job.id, PART_FAILED)
        if lost:
            detail = f"a part of the import failed, and {lost:,} of its photos were not enrolled; the log says why"
            raise Conflict(detail, code="PartFailed", enrolled=job.done, refused=job.failed)
        seconds = round(now() - (job.started_at or now()), 3)
        summary = {"enrolled": job.done, "refused": job.failed, "seconds": seconds, "change": change}
        return summary | {"photo_failures": (job.result or {}).get("photo_failures", 0)}
