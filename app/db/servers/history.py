"""Which servers of PostgreSQL the processes of a home have seen, by their timelines and by tokens left there.

A standby that takes over begins a higher timeline than its primary had, under the same system identifier. Two that take
over from one primary have the same timeline; the token that was left with the one is missing in the other.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Self

from filelock import FileLock

from ml.files import atomic_write, parse_json

SERVERS_FILE = "database-servers.json"
"""In the home: the highest timeline that was seen of each system identifier, and the token left with each database."""
CHECK_SECONDS = 1.0
LOCK_SECONDS = 5.0

log = logging.getLogger("likeness.database")


class ServerTimeline(NamedTuple):
    """A server as it was when a connection to it was opened. database: the oid of the database there"""

    system: str
    timeline: int
    database: int = 0

    @property
    def token_key(self) -> str:
        """Under what the token is kept that was left in this database while the server has this timeline."""
        return f"{self.system} {self.timeline} {self.database}"


class SeenServers(NamedTuple):
    """The highest timeline of each system identifier, and the token of each `ServerTimeline.token_key`."""

    timelines: dict[str, int]
    tokens: dict[str, str]

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Read what `to_json` wrote, or an earlier version, without tokens. Raises ValueError."""
        stored = parse_json(content)
        if not isinstance(stored, dict):
            raise ValueError("it is no object")
        timelines, tokens = (stored["timelines"], stored["tokens"]) if "timelines" in stored else (stored, {})
        for part, kind in ((timelines, int), (tokens, str)):
            if not isinstance(part, dict) or not all(isinstance(value, kind) for value in part.values()):
                raise ValueError("its parts are no timelines and tokens")
        return cls(timelines, tokens)

    def to_json(self) -> bytes:
        return json.dumps(self._asdict()).encode()


class ServerHistory:
    """The servers that processes of a home have seen. Threads may share it.

    home: holds the file that the processes share; None: nothing is kept
    """

    def __init__(self, home: Path | None) -> None:
        self._path = None if home is None else home / SERVERS_FILE
        self._seen = SeenServers({}, {})
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
        return self._seen.timelines.get(server.system, 0) > server.timeline

    def find_newest(self, server: ServerTimeline) -> int:
        """Return the highest timeline that was seen of the system, which is kept if it is this server's."""
        with self._lock:
            self._read_changes()
            if self._seen.timelines.get(server.system, 0) < server.timeline:
                more = SeenServers({server.system: server.timeline}, {})
                with suppress(OSError), self._open_file():
                    self._add(more)
                self._add(more)
            return self._seen.timelines[server.system]

    def find_token(self, server: ServerTimeline, leave: Callable[[], str | None]) -> str | None:
        """Return the token that was left in the server's database; None if none was.

        leave: leaves a new token there, and returns it; None where it cannot. It is called where none is known, by one
            process at a time.
        """
        with self._lock:
            self._read_changes()
            known = self._seen.tokens.get(server.token_key)
            if known is None:
                with suppress(OSError), self._open_file():
                    known = self._seen.tokens.get(server.token_key) or leave()
                    if known is not None:
                        self._add(SeenServers({}, {server.token_key: known}))
            return known

    @contextmanager
    def _open_file(self) -> Iterator[None]:
        """Read the file, and write to it what is added meanwhile. Other processes wait. Raises OSError.

        There is no file without a home.
        """
        if self._path is None or not self._path.parent.is_dir():
            raise FileNotFoundError("no home")
        try:
            with FileLock(self._path.with_suffix(".lock"), timeout=LOCK_SECONDS):
                self._read_changes()
                before = self._seen
                yield
                if self._seen != before:
                    with atomic_write(self._path) as file:
                        file.write(self._seen.to_json())
                    self._file_state = _read_file_state(self._path)
        except OSError as error:
            log.warning("database.server_not_kept path=%s error=%s", self._path, error)
            raise

    def _add(self, more: SeenServers) -> None:
        timelines = dict(self._seen.timelines)
        for system, timeline in more.timelines.items():
            timelines[system] = max(timeline, timelines.get(system, 0))
        self._seen = SeenServers(timelines, self._seen.tokens | more.tokens)

    def _read_changes(self) -> None:
        if self._path is None:
            return
        state = _read_file_state(self._path)
        if state != self._file_state:  # a file that was deleted holds nothing
            self._seen, self._file_state = _read_seen(self._path), state


def _read_file_state(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read_seen(path: Path) -> SeenServers:
    """Return what the file holds; nothing if it is missing or damaged."""
    try:
        return SeenServers.from_json(path.read_bytes())
    except (OSError, ValueError):
        return SeenServers({}, {})
