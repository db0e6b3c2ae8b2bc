"""Notice that the home of a running service was moved, deleted, replaced or made read-only."""

import errno
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from app.db.database_file import OpenedPath
from app.errors import Busy
from app.storage.blob_store import make_disk_error

CHECK_SECONDS = 1.0
HOME_MOVED = (
    "the home of this service, or a folder in it, was moved, deleted or replaced while it ran: put it back, or restart "
    "the service"
)
HOME_READ_ONLY = "the home of this service cannot be written: its disk is read-only, or its owner is another user"

log = logging.getLogger("likeness.storage")


class HomeWatch:
    """Compares the home with the one that was opened. Safe to use from several threads.

    opened: the home, folders in it, and the file of the database if it has one
    written: further paths that the service writes to, where they are there
    """

    def __init__(self, opened: Sequence[Path], written: Sequence[Path] = ()) -> None:
        self._opened = [OpenedPath(path) for path in opened]
        self._written = [*opened, *written]
        self._checked_at = float("-inf")
        self._fault: str | None = None

    def find_fault(self) -> str | None:
        """Return why nothing may be stored in the home any more; None if it is the one that was opened.

        It is compared once a second at most.
        """
        now = time.monotonic()
        if now - self._checked_at >= CHECK_SECONDS:
            moved = [path.path for path in self._opened if not path.is_same()]
            if moved and self._fault is None:
                log.error("home.moved path=%s", moved[0])
            self._fault, self._checked_at = (HOME_MOVED if moved else None), now
        return self._fault

    def check(self) -> None:
        """Raises Busy if the home is not the one that was opened."""
        fault = self.find_fault()
        if fault is not None:
            raise Busy(fault)

    def explain(self, error: OSError) -> Exception:
        """Return Busy if a file could not be used because of the home or its disk; otherwise the error itself."""
        self._checked_at = float("-inf")
        fault = self.find_fault()
        if fault is None and error.errno in (errno.EACCES, errno.EPERM):
            fault = self.find_write_fault()
        return make_disk_error(error) if fault is None else Busy(fault)

    def find_write_fault(self) -> str | None:
        """Return why the home cannot be written; None if it can."""
        is_writable = all(os.access(path, os.W_OK) for path in self._written if path.exists())
        return None if is_writable else HOME_READ_ONLY
