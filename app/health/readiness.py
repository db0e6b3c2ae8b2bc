"""Find out once, for all who ask at the same time or soon after, whether this process is ready.

Anybody may ask, and what is asked of the database grows with the deployments.
"""

import asyncio
import math
import time

from starlette.concurrency import run_in_threadpool

from app.health.service import list_unready_reasons
from app.serving.engine import Engine

REUSE_FACTOR = 10
"""An answer holds for so many times as long as it took, so that at most a tenth of the time goes into finding it."""
MAX_REUSE_SECONDS = 5.0


class Readiness:
    """The reasons why a process is not ready. It is used on the event loop only, so it needs no lock."""

    def __init__(self) -> None:
        self._search: asyncio.Task[list[str]] | None = None
        self._reasons = list[str]()
        self._holds_until = -math.inf

    async def list_reasons(self, engine: Engine) -> list[str]:
        """Return the reasons. Waiting for others' search takes no request thread. Raises what the search raises."""
        if self._search is None:
            if time.monotonic() < self._holds_until:
                return self._reasons
            self._search = asyncio.create_task(self._find_reasons(engine))
        return await asyncio.shield(self._search)

    async def _find_reasons(self, engine: Engine) -> list[str]:
        started_at = time.monotonic()
        try:
            self._reasons = await run_in_threadpool(list_unready_reasons, engine)
        finally:
            self._search = None
        found_at = time.monotonic()
        self._holds_until = found_at + min(REUSE_FACTOR * (found_at - started_at), MAX_REUSE_SECONDS)
        return self._reasons
