"""Note which files are written for faces that have no row yet, so that an erasure finds what a killed process has left.

A file lies there a moment before its row is committed. If the process ends in between, nothing names it. Each process
has a file of its own in a folder of the home, with a line for each enrolment that it has begun, while one runs.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from app.storage.blob_store import make_disk_error

UNFINISHED_FOLDER = "unfinished"

UnfinishedFiles = tuple[str, list[str]]
"""A collection, and the names of files in it."""


class UnfinishedPhotos:
    """What the processes of a home have begun to enrol. Threads may share it."""

    def __init__(self, home: Path) -> None:
        self._folder = home / UNFINISHED_FOLDER
        self._lock = threading.Lock()
        self._running = 0
        self._path: Path | None = None

    @contextmanager
    def note(self, collection: str, names: Sequence[str]) -> Iterator[None]:
        """Have these files be found, by any process, if what runs here does not end well.

        Nothing is synced to the disk: it is there for a process that ends, not for a machine that loses its power.
        Raises Busy if the disk is full or read-only.
        """
        with self._lock:
            if self._path is None:
                self._path = self._folder / f"{socket.gethostname()[:24]}-{os.getpid()}-{uuid4().hex[:8]}"
            try:
                self._folder.mkdir(exist_ok=True)
                with self._path.open("a") as file:
                    file.write(json.dumps([collection, list(names)]) + "\n")
            except OSError as error:
                raise make_disk_error(error) from error
            self._running += 1
        has_ended = False
        try:
            yield
            has_ended = True
        finally:
            with self._lock:
                self._running -= 1
                if not has_ended:
                    self._path = None  # what is noted there stays, and the next has another file
                elif not self._running and self._path is not None:
                    with suppress(OSError):  # the rows are committed; the sweep removes it
                        self._path.unlink()

    def read(self) -> Iterator[UnfinishedFiles]:
        """Yield the files of all enrolments that run now, in any process, or did not end well."""
        with suppress(FileNotFoundError):
            for path in sorted(self._folder.iterdir()):
                with suppress(FileNotFoundError):
                    yield from _parse(path.read_text())

    def remove_old(self, seconds: float) -> None:
        """Remove what has not changed for so long."""
        before = time.time() - seconds
        with suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        path.unlink()


def _parse(text: str) -> Iterator[UnfinishedFiles]:
    for noted in text.splitlines():
        with suppress(ValueError):  # the last line of a killed process may be cut
            collection, names = json.loads(noted)
            yield collection, names
