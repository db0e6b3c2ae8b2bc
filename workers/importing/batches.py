"""Divide the items of an import into batches, which are jobs of their own, and enqueue a few at a time."""

from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app.db.tables import Job, JobItem
from app.queue import jobs
from app.queue.messages import IngestBatch
from app.serving.limits.photo_failures import PHOTO_FAILED

MIN_BATCH_PHOTOS, MAX_BATCH_PHOTOS = 32, 1_024
REMAINING_SHARE = 8
"""A batch is this fraction of the photos that remain, so that all workers finish at about the same time."""
PART_FAILED = "PART_FAILED"
"""The reason of the items that a batch left queued when it failed."""
MAX_LIVE_BATCHES = 12
"""Batches that wait or run at a time, so that other jobs get their turn."""


def enqueue_batches(session: Session, job: Job) -> bool:
    """Keep some batches enqueued. Returns whether any batch is still to be done.

    A batch whose workers died is enqueued again.
    """
    children = Job.parent_id == job.id
    lost = update(Job).where(children, Job.state == "failed")
    lost = lost.where(Job.problem["code"].as_string() == "WorkerLost")
    session.execute(lost.values(state="queued", tries=1, worker=None, problem=None, finished_at=None))
    live = session.scalar(select(func.count()).where(children, Job.state.in_(jobs.LIVE_STATES))) or 0
    first = session.scalar(select(func.max(Job.body["last"].as_integer())).where(children)) or 0
    while live < MAX_LIVE_BATCHES and first < (job.total or 0):
        last = _find_batch_end(first, job.total or 0)
        jobs.enqueue(session, IngestBatch(job=job.id, first=first, last=last), parent=job.id)
        first, live = last, live + 1
    return live > 0


def close_items(session: Session, job: str) -> int:
    """Refuse the items that their batches have left queued, and store the final counts of the import.

    Returns the number of photos that an error kept from being enrolled.
    """
    left = update(JobItem).where(JobItem.job_id == job, JobItem.state == "queued")
    session.execute(left.values(state="failed", detail={"reasons": [PART_FAILED]}))
    counts = dict(session.execute(_count_states(job)).all())
    done, failed = counts.get("done", 0), counts.get("failed", 0)
    session.execute(update(Job).where(Job.id == job).values(done=done, failed=failed))
    return sum(count_reason(session, job, reason) for reason in (PHOTO_FAILED, PART_FAILED))


def count_reason(session: Session, job: str, reason: str) -> int:
    """Return how many items of an import were refused for this reason alone."""
    refused = (JobItem.job_id == job, JobItem.state == "failed", JobItem.detail["reasons"][0].as_string() == reason)
    return session.scalar(select(func.count()).where(*refused)) or 0


def _find_batch_end(first: int, total: int) -> int:
    """Return where the batch ends that begins at `first`."""
    return min(total, first + min(MAX_BATCH_PHOTOS, max(MIN_BATCH_PHOTOS, (total - first) // REMAINING_SHARE)))


def _count_states(job: str) -> Any:
    return select(JobItem.state, func.count()).where(JobItem.job_id == job).group_by(JobItem.state)
