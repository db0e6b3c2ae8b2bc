"""Whether somebody is being served: how a trainer knows when it may take all cores."""

import time
from pathlib import Path

STAMP = "last-request"
STAMP_SECONDS = 1.0


class RequestTimestamp:
    """The API stamps a file at most once a second; whoever trains on the same host looks at its age."""

    def __init__(self, home: Path) -> None:
        self._file = home / STAMP
        self._stamped = 0.0

    def stamp(self) -> None:
        if time.monotonic() - self._stamped > STAMP_SECONDS:
            self._stamped = time.monotonic()
            self._file.touch()

    def idle_seconds(self) -> float:
        """Since the last request; infinite where there was none."""
        try:
            return time.time() - self._file.stat().st_mtime
        except FileNotFoundError:
            return float("inf")
