"""Stream the changes of jobs: one poller per process reads every watched job in one query."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, select
from sse_starlette import ServerSentEvent

from app.db.session import reading
from app.db.tables import Job, now
from app.deps.caller import Role
from app.deps.job_response import JobOut
from app.deps.key_secrets import find_opened_keys
from app.resources import Resources

log = logging.getLogger("likeness.jobs")

POLL_SECONDS = 0.3
RETRY_SECONDS = 1.0
ENDED = ("succeeded", "failed", "cancelled")


class Watch(NamedTuple):
    """A job that somebody watches, by a secret or a token.

    digest: the hash of the key's secret, empty for a token, which cannot be revoked
    valid_until: the time from which it was to be refused when the stream was opened, None if it was not limited
    role: of the key or token, which decides whether the result is shown
    """

    job_id: str
    digest: str
    valid_until: float | None = None
    role: Role = "reader"


class Poller:
    """Read all watched jobs in one query, for as long as anybody watches one.

    latest: each watched job as the last query returned it, None if it was deleted, or the key or token is no longer
        valid; a job that no query has read yet is missing
    """

    def __init__(self, database: Engine) -> None:
        self.database = database
        self.watchers: dict[Watch, int] = {}
        self.latest: dict[Watch, JobOut | None] = {}
        self.polled = asyncio.Condition()
        self.task: asyncio.Task[None] | None = None

    def add(self, watch: Watch) -> None:
        """Add a watcher of the job, and start polling if nobody watched a job until now."""
        self.watchers[watch] = self.watchers.get(watch, 0) + 1
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._poll())

    def remove(self, watch: Watch) -> None:
        """Remove a watcher of the job."""
        self.watchers[watch] -= 1
        if not self.watchers[watch]:
            del self.watchers[watch]
            self.latest.pop(watch, None)

    async def _poll(self) -> None:
        while self.watchers:
            try:
                jobs = await asyncio.to_thread(self._read_jobs, list(self.watchers))
            except Exception as error:  # whatever it is, nobody else tells the watchers of later changes
                log.warning("jobs.poll_failed error=%s", error)
                await self._end_expired()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            async with self.polled:
                self.latest.update((watch, job) for watch, job in jobs.items() if watch in self.watchers)
                self.polled.notify_all()
            await asyncio.sleep(POLL_SECONDS)

    async def _end_expired(self) -> None:
        """End the streams of keys and tokens whose time has run out, for which no query is needed."""
        expired = {
            watch: None for watch in self.watchers if watch.valid_until is not None and watch.valid_until <= now()
        }
        if expired:
            async with self.polled:
                self.latest.update(expired)
                self.polled.notify_all()

    def _read_jobs(self, watches: list[Watch]) -> dict[Watch, JobOut | None]:
        chosen = select(Job).where(Job.id.in_({watch.job_id for watch in watches}))
        with reading(self.database) as session:
            jobs = {job.id: job for job in session.scalars(chosen)}
            seen = {w: JobOut.of(jobs[w.job_id], w.role) for w in watches if w.job_id in jobs}
            opened = find_opened_keys(session, {watch.digest for watch in watches} - {""}, now())
        valid = {
            watch: (not watch.digest or watch.digest in opened)
            and (watch.valid_until is None or now() < watch.valid_until)
            for watch in watches
        }
        return {watch: seen.get(watch) if valid[watch] else None for watch in watches}


POLLERS: WeakKeyDictionary[Any, Poller] = WeakKeyDictionary()


async def stream_job(resources: Resources, watch: Watch) -> AsyncIterator[ServerSentEvent]:
    """Yield the job each time it changes, until it has ended or was removed, or the secret or token is no longer
    accepted.

    Waits while the database is away.
    """
    poller = POLLERS.setdefault(resources, Poller(resources.database))
    poller.add(watch)
    last: JobOut | None = None
    try:
        while True:
            async with poller.polled:
                await poller.polled.wait()
            if watch not in poller.latest:
                continue  # this query began before the job was watched
            job = poller.latest[watch]
            if job is None:
                return
            if job != last:
                last = job
                yield ServerSentEvent(job.model_dump_json(), sep="\n")
            if job.state in ENDED:
                return
    finally:
        poller.remove(watch)
