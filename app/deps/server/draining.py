"""A server that can be asked to finish what it has while another process accepts what comes."""

import signal
import time
from types import FrameType

import uvicorn

from app.deps.server.protocol import SHORT_IDLE_SECONDS, LimitedHttpProtocol

CLOSE = (b"connection", b"close")
MAX_DRAIN_SECONDS = 60.0
"""Then what is still open, such as a stream of events, ends as it does when the service is stopped."""


class DrainingServer(uvicorn.Server):
    """Ends some time after `drain`: when its last connection has closed, or after MAX_DRAIN_SECONDS."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._drain_asked_at: float | None = None
        self._accepts = True

    def drain(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal that asks for it."""
        self._drain_asked_at = self._drain_asked_at or time.monotonic()

    async def on_tick(self, counter: int) -> bool:
        """Do what is due, ten times a second. Returns whether the server must end."""
        if self._drain_asked_at is not None:
            if self._accepts:
                self._stop_accepting()
            elapsed_seconds = time.monotonic() - self._drain_asked_at
            if not self.server_state.connections or elapsed_seconds > MAX_DRAIN_SECONDS:
                self.handle_exit(signal.SIGTERM, None)
        return await super().on_tick(counter)

    def _stop_accepting(self) -> None:
        """Accept no connection, and close each one after its next answer, or when it has been idle for a short time.

        One that closed at once could meet a request on its way.
        """
        self._accepts = False
        for server in self.servers:
            server.close()
        self.config.encoded_headers.append(CLOSE)  # of answers to requests that come later
        self.server_state.default_headers.append(CLOSE)  # of those that are being answered
        for connection in self.server_state.connections:
            if isinstance(connection, LimitedHttpProtocol):
                connection.max_idle_seconds = SHORT_IDLE_SECONDS
