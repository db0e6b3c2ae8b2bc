"""Store answers, and free the keys of failed requests, once a database that was away or full can be written again."""

import asyncio
from collections.abc import Callable
from typing import Any

from anyio.to_thread import run_sync

from app.db.tables import RESERVATION_SECONDS, now
from app.deps.idempotency.stored_answers import ReservedAnswer
from app.errors import Busy
from app.resources import Resources

RETRY_SECONDS = 1.0
MAX_LATE_BYTES = 16 * 2**20
"""Of the answers that wait. Beyond it, the key of a request stays reserved."""
ROW_BYTES = 1_024
"""What an answer takes besides its body."""

Values = dict[str, Any] | None
"""The columns of an answer; None: its request has failed, and its key is free."""


class LateAnswers:
    """Answers that could not be stored. Until they are, their keys are reserved, and erasures wait for them.

    store: stores one; raises Busy while the database cannot be written
    """

    def __init__(self, store: Callable[[Resources, ReservedAnswer, Values], None]) -> None:
        self.store = store
        self._waiting: list[tuple[Resources, ReservedAnswer, Values]] = []
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    def add(self, resources: Resources, reserved: ReservedAnswer, values: Values) -> None:
        """Store an answer later. Call this on the event loop."""
        size = _count_bytes(values)
        if self._bytes + size <= MAX_LATE_BYTES:
            self._bytes += size
            self._waiting.append((resources, reserved, values))
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._store_all())

    async def _store_all(self) -> None:
        while self._waiting:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                while self._waiting:
                    resources, reserved, values = self._waiting[0]
                    if reserved.created_at > now() - RESERVATION_SECONDS:
                        await run_sync(self.store, resources, reserved, values)
                    self._waiting.pop(0)
                    self._bytes -= _count_bytes(values)
            except Busy:
                continue


def _count_bytes(values: Values) -> int:
    return ROW_BYTES + (0 if values is None else len(values["body"]))
