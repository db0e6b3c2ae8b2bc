"""Stream the changes of jobs: one poller per process reads every watched job in one query."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, select
from sqlalchemy.exc import OperationalError
from sse_starlette import ServerSentEvent

from app.db.session import reading
from app.db.tables import Job
from app.deps.job_response import JobOut
from app.resources import Resources

log = logging.getLogger("likeness.jobs")

POLL_SECONDS = 0.3
RETRY_SECONDS = 1.0
ENDED = ("succeeded", "failed", "cancelled")


class Poller:
    """Read all watched jobs in one query, for as long as anybody watches one.

    latest: each watched job as the last query returned it, None if it was deleted; a job that no query has read yet is
        missing
    """

    def __init__(self, database: Engine) -> None:
        self.database = database
        self.watchers: dict[str, int] = {}
        self.latest: dict[str, JobOut | None] = {}
        self.polled = asyncio.Condition()
        self.task: asyncio.Task[None] | None = None

    def watch(self, job_id: str) -> None:
        """Add a watcher of the job, and start polling if nobody watched a job until now."""
        self.watchers[job_id] = self.watchers.get(job_id, 0) + 1
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._poll())

    def leave(self, job_id: str) -> None:
        """Remove a watcher of the job."""
        self.watchers[job_id] -= 1
        if not self.watchers[job_id]:
            del self.watchers[job_id]
            self.latest.pop(job_id, None)

    async def _poll(self) -> None:
        while self.watchers:
            try:
                jobs = await asyncio.to_thread(self._read_jobs, list(self.watchers))
            except OperationalError as error:
                log.warning("jobs.poll_failed error=%s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            async with self.polled:
                self.latest.update((job_id, job) for job_id, job in jobs.items() if job_id in self.watchers)
                self.polled.notify_all()
            await asyncio.sleep(POLL_SECONDS)

    def _read_jobs(self, job_ids: list[str]) -> dict[str, JobOut | None]:
        with reading(self.database) as session:
            jobs = {job.id: JobOut.of(job) for job in session.scalars(select(Job).where(Job.id.in_(job_ids)))}
        return {job_id: jobs.get(job_id) for job_id in job_ids}


POLLERS: WeakKeyDictionary[Any, Poller] = WeakKeyDictionary()


async def stream_job(resources: Resources, job_id: str) -> AsyncIterator[ServerSentEvent]:
    """Yield the job each time it changes, until it has ended or was removed; wait while the database is away."""
    poller = POLLERS.setdefault(resources, Poller(resources.database))
    poller.watch(job_id)
    last: JobOut | None = None
    try:
        while True:
            async with poller.polled:
                await poller.polled.wait()
            if job_id not in poller.latest:
                continue  # this query began before the job was watched
            job = poller.latest[job_id]
            if job is None:
                return
            if job != last:
                last = job
                yield ServerSentEvent(job.model_dump_json(), sep="\n")
            if job.state in ENDED:
                return
    finally:
        poller.leave(job_id)
