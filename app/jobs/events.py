"""Server-sent events: one poller a process looks for all who watch."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import select

from app.db.session import reading
from app.db.tables import Job
from app.deps.job_response import JobOut
from app.resources import Resources

LOOK_SECONDS = 0.3
ENDED = ("succeeded", "failed", "cancelled")


class Poller:
    """Reads all watched jobs in one query, as long as anybody watches."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.watched: dict[str, int] = {}
        self.seen: dict[str, JobOut] = {}
        self.looked = asyncio.Condition()
        self.task: asyncio.Task[None] | None = None

    def watch(self, job_id: str) -> None:
        self.watched[job_id] = self.watched.get(job_id, 0) + 1
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._poll())

    def leave(self, job_id: str) -> None:
        self.watched[job_id] -= 1
        if not self.watched[job_id]:
            del self.watched[job_id]
            self.seen.pop(job_id, None)

    async def _poll(self) -> None:
        while self.watched:
            found = await asyncio.to_thread(self._look, list(self.watched))
            async with self.looked:
                self.seen.update(found)
                self.looked.notify_all()
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self, job_ids: list[str]) -> dict[str, JobOut]:
        with reading(self.resources.database) as session:
            return {j.id: JobOut.of(j) for j in session.scalars(select(Job).where(Job.id.in_(job_ids)))}


POLLERS: WeakKeyDictionary[Any, Poller] = WeakKeyDictionary()


async def of(resources: Resources, job_id: str) -> AsyncIterator[str]:
    """The job as often as it changes, until it has ended or was removed."""
    poller = POLLERS.setdefault(resources, Poller(resources))
    poller.watch(job_id)
    last = ""
    try:
        while True:
            async with poller.looked:
                await asyncio.wait_for(poller.looked.wait(), timeout=15)
            job = poller.seen.get(job_id)
            if job is None:
                return
            told = job.model_dump_json()
            if told != last:
                last = told
                yield f"data: {told}\n\n"
            if job.state in ENDED:
                return
    finally:
        poller.leave(job_id)
