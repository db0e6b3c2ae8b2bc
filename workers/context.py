"""What a handler gets besides its message: the resources, the progress of its job, and interruption."""

import math
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sqlalchemy import update
from sqlalchemy.orm import Session

from app.db.session import check_writes, reading, writing
from app.db.tables import Job
from app.errors import Conflict
from app.queue import jobs
from app.queue.messages import Message
from app.resources import Resources


class Later(Exception):
    """Put the job back into its queue for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"run again in {seconds} s")
        self.seconds = seconds


class Interrupted(Exception):
    """The job was cancelled or taken over by another worker, or this worker must stop."""


@dataclass(frozen=True)
class JobContext:
    """One run of one job by one worker. deadline: when it has to have ended, on the monotonic clock"""

    job_id: str
    worker: str
    resources: Resources
    interrupted: threading.Event = field(default_factory=threading.Event)
    deadline: float = math.inf

    @classmethod
    def bind(cls, job: Job, message: Message, worker: str, resources: Resources) -> Self:
        """Make the context of a job: it writes nothing for a collection that was deleted, whatever has its name now.

        Every transaction of `writing` with these resources raises Interrupted then.
        """

        def check(session: Session) -> None:
            if not jobs.is_bound(session, message):
                raise Interrupted

        bound = replace(resources, database=check_writes(resources.database, check))
        is_limited = message.queue == "training"
        deadline = time.monotonic() + resources.settings.max_training_seconds if is_limited else math.inf
        return cls(job.id, worker, bound, deadline=deadline)

    def check(self) -> None:
        """Raise Interrupted if the handler must stop, Conflict if it took too long. It is called between two steps."""
        if self.interrupted.is_set():
            raise Interrupted
        if time.monotonic() > self.deadline:
            raise self.describe_timeout()

    def describe_timeout(self) -> Conflict:
        """Return the error of a job that has not ended at its deadline."""
        seconds = self.resources.settings.max_training_seconds
        detail = f"the job took more than {seconds:,.0f} seconds: choose smaller options or less data"
        return Conflict(f"{detail}, or have LIKENESS_MAX_TRAINING_SECONDS raised", code="TookTooLong")

    def check_lease(self) -> None:
        """Raise Interrupted if another worker has the job by now: this one may have been paused, and not know it."""
        self.check()
        with reading(self.resources.database) as session:
            job = session.get(Job, self.job_id)
        if job is None or job.worker != self.worker:
            raise Interrupted

    def progress(self, done: int, total: int | None = None, failed: int = 0) -> None:
        """Store the progress, which `GET /v1/jobs/{id}` shows. Raises Interrupted."""
        with writing(self.resources.database) as session:
            self.write_progress(session, done, total, failed)

    def write_progress(self, session: Session, done: int, total: int | None = None, failed: int = 0) -> None:
        """Store the progress in the transaction of what was done. Raises Interrupted."""
        self.check()
        values: dict[str, Any] = {"done": done, "failed": failed} | ({} if total is None else {"total": total})
        session.execute(update(Job).where(Job.id == self.job_id).values(**values))
