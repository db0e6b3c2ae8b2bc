"""What a handler gets besides its message: the resources, the progress of its job, and interruption."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sqlalchemy import update
from sqlalchemy.orm import Session

from app.db.session import check_writes, reading, writing
from app.db.tables import Collection, Job
from app.errors import Conflict, Stopped
from app.queue import jobs
from app.queue.messages import Erase, Message
from app.resources import Resources


class Later(Exception):
    """Put the job back into its queue for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"run again in {seconds} s")
        self.seconds = seconds


class Interrupted(Stopped):
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
        """Make the context of a job: it writes nothing once another worker may have the job, however long it slept.

        Nor does it for a collection that was deleted, whatever has its name now. Every transaction of `writing` with
        these resources raises Interrupted then.
        """
        job_id = job.id

        def check(session: Session, is_last: bool) -> None:
            if not jobs.is_bound(session, message) or not jobs.is_held(session, job_id, worker=worker, lock=is_last):
                raise Interrupted

        bound = replace(resources, database=check_writes(resources.database, check))
        is_limited = message.queue == "training"
        deadline = time.monotonic() + resources.settings.max_training_seconds if is_limited else math.inf
        return cls(job_id, worker, bound, deadline=deadline)

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
        """Raise Interrupted if another worker may have the job by now: this one may have been paused, and not know it.

        Transactions check that themselves. This is called before anything else that cannot be undone.
        """
        self.check()
        if not self.has_job():
            raise Interrupted

    def has_job(self) -> bool:
        """Whether this worker still has the job."""
        with reading(self.resources.database) as session:
            return jobs.is_held(session, self.job_id, worker=self.worker)

    def lock_job(self, session: Session) -> None:
        """Keep others from getting the job until the transaction ends. Raises Interrupted if one may have it."""
        if not jobs.is_held(session, self.job_id, worker=self.worker, lock=True):
            raise Interrupted

    def remove_files_later(self, collection: str, images: Sequence[str]) -> None:
        """Enqueue the removal of the files of photos that no row names, also if this worker has lost its job."""
        with writing(check_writes(self.resources.database, None)) as session:
            is_gone = session.get(Collection, collection) is None
            jobs.enqueue(session, Erase(collection=collection, whole=is_gone, images=tuple(images)))
        self.resources.notifier.notify("jobs")

    def progress(self, done: int, total: int | None = None, failed: int = 0) -> None:
        """Store the progress, which `GET /v1/jobs/{id}` shows. Raises Interrupted."""
        with writing(self.resources.database) as session:
            self.write_progress(session, done, total, failed)

    def write_progress(self, session: Session, done: int, total: int | None = None, failed: int = 0) -> None:
        """Store the progress in the transaction of what was done. Raises Interrupted."""
        self.check()
        values: dict[str, Any] = {"done": done, "failed": failed} | ({} if total is None else {"total": total})
        session.execute(update(Job).where(Job.id == self.job_id).values(**values))
