"""Record when the API was last used, so that a training knows when it may use all cores."""

import logging
import time
from pathlib import Path

TIMESTAMP_FILE = "last-request"
MIN_STAMP_INTERVAL_SECONDS = 1.0

log = logging.getLogger("likeness.api")


class RequestTimestamp:
    """A file that the API touches at most once a second. A training on the same host reads its age."""

    def __init__(self, home: Path) -> None:
        self._file = home / TIMESTAMP_FILE
        self._stamped = 0.0

    def stamp(self) -> None:
        """Record a request. Where the home cannot be written, searches go on, and trainings take all cores."""
        if time.monotonic() - self._stamped > MIN_STAMP_INTERVAL_SECONDS:
            self._stamped = time.monotonic()
            try:
                self._file.touch()
            except OSError as error:
                log.warning("last_request.not_stamped error=%s", error)

    def idle_seconds(self) -> float:
        """Return the seconds since the last request; infinity if there was none."""
        try:
            return time.time() - self._file.stat().st_mtime
        except FileNotFoundError:
            return float("inf")
