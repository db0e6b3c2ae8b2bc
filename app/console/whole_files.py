"""Files that are sent whole, from memory.

A range costs a read and two writes, and a request may ask for a hundred. A read takes one of the threads that answer
all other requests, which would wait for clients who load the page.
"""

import asyncio
import os
from functools import lru_cache
from weakref import WeakKeyDictionary

from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

MAX_KEPT_FILES, MAX_PARTS_AT_ONCE = 64, 4
TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class WholeFile(FileResponse):
    """A file of the package, whatever `Range` the request has: a server may ignore it (RFC 9110, section 14.2)."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file in parts, as fast as the client reads them."""
        file_status = self.stat_result or os.stat(self.path)
        self.set_stat_headers(file_status)
        self.headers["accept-ranges"] = "none"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = b"" if scope["method"] == "HEAD" else _read(os.fspath(self.path), file_status.st_mtime_ns)
        for start in range(0, len(body), self.chunk_size):
            await _wait_for_turn()
            part = body[start : start + self.chunk_size]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _wait_for_turn() -> None:
    """Let other requests go on before each part, however many files are being sent. Slow clients hold no turn."""
    async with TURNS.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_PARTS_AT_ONCE)):
        await asyncio.sleep(0)


@lru_cache(MAX_KEPT_FILES)
def _read(path: str, changed_at: int) -> bytes:
    """Return the bytes of a file, which is read once for each time that it has changed."""
    with open(path, "rb") as file:
        return file.read()
