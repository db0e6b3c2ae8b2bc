"""Which timeline of each server of PostgreSQL the processes of a home have seen.

A standby that takes over begins a higher timeline than its primary had, under the same system identifier.
"""

import json
import logging
import math
import os
import time
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from filelock import FileLock

from ml.files import atomic_write, parse_json

SERVERS_FILE = "database-servers.json"
"""In the home: the highest timeline that was seen of each system identifier."""
CHECK_SECONDS = 1.0
LOCK_SECONDS = 5.0

log = logging.getLogger("likeness.database")


class ServerTimeline(NamedTuple):
    """A server as it was when a connection to it was opened."""

    system: str
    timeline: int


class ServerHistory:
    """The highest timeline of each system identifier that processes of a home have seen. Threads may share it.

    home: holds the file that the processes share; None: nothing is kept
    """

    def __init__(self, home: Path | None) -> None:
        self._path = None if home is None else home / SERVERS_FILE
        self._timelines = dict[str, int]()
        self._file_state: tuple[int, int, int] | None = None
        self._checked_at = -math.inf
        self._lock = Lock()

    def is_behind(self, server: ServerTimeline) -> bool:
        """Whether a higher timeline was seen. The file is looked at once a second at most."""
        now = time.monotonic()
        if now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            with self._lock:
                self._read_changes()
        return self._timelines.get(server.system, 0) > server.timeline

    def find_newest(self, server: ServerTimeline) -> int:
        """Return the highest timeline that was seen of the system, which is kept if it is this server's."""
        with self._lock:
            self._read_changes()
            if self._timelines.get(server.system, 0) < server.timeline:
                self._keep(server)
            return self._timelines[server.system]

    def _keep(self, server: ServerTimeline) -> None:
        """Add a server to what this process knows, and to the file. There is none without a home."""
        if self._path is not None and self._path.parent.is_dir():
            try:
                with FileLock(self._path.with_suffix(".lock"), timeout=LOCK_SECONDS):
                    self._read_changes()
                    self._add(server)
                    with atomic_write(self._path) as file:
                        file.write(json.dumps(self._timelines).encode())
                    self._file_state = _read_file_state(self._path)
            except OSError as error:
                log.warning("database.server_not_kept path=%s error=%s", self._path, error)
        self._add(server)

    def _add(self, server: ServerTimeline) -> None:
        newest = max(server.timeline, self._timelines.get(server.system, 0))
        self._timelines = self._timelines | {server.system: newest}

    def _read_changes(self) -> None:
        if self._path is None:
            return
        state = _read_file_state(self._path)
        if state != self._file_state:  # a file that was deleted holds nothing
            self._timelines, self._file_state = _read_timelines(self._path), state


def _read_file_state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read_timelines(path: Path) -> dict[str, int]:
    """Return what the file holds; nothing if it is missing or damaged."""
    try:
        stored = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    is_whole = isinstance(stored, dict) and all(isinstance(timeline, int) for timeline in stored.values())
    return stored if is_whole else {}
