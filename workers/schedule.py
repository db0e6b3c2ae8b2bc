"""Periodic work: free the jobs of dead workers, and enqueue a sweep from time to time."""

from sqlalchemy import select

from app.db.session import writing
from app.db.tables import Job, now
from app.queue import jobs
from app.queue.messages import Sweep
from app.resources import Resources

FREE_SECONDS = 2.0
SWEEP_SECONDS = 600.0


class Schedule:
    """Every worker of the default queue runs one. Several may do the same work at once."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.freed_at = 0.0

    def tick(self) -> None:
        """Do what is due."""
        if now() - self.freed_at < FREE_SECONDS:
            return
        self.freed_at = now()
        with writing(self.resources.database) as session:
            jobs.free_abandoned(session)
            last = select(Job.created_at).where(Job.kind == Sweep.kind).order_by(Job.id.desc()).limit(1)
            if now() - (session.scalar(last) or 0.0) > SWEEP_SECONDS:
                jobs.enqueue(session, Sweep())
