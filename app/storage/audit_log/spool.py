"""Keep entries in files until they are in the database.

A request appends its entry before it is answered, and the writer takes whole files. An entry therefore survives a
process that is killed and a database that is away. Entries of a dead process are taken by any other process.
"""

import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout
from prometheus_client import Counter

from app.storage.audit_log.drafts import EntryDraft

MAX_WAITING_BYTES = 256 * 2**20
SUFFIX, LOCK_SUFFIX = ".spool", ".lock"
LOST_ENTRIES = Counter(
    "likeness_audit_entries_lost",
    "Entries of the audit log that this process could not keep; the log says how many",
    registry=None,
)


class Segment(NamedTuple):
    """A file of entries that nobody appends to any more. is_own: this process wrote it, and has not read it before"""

    path: Path
    is_own: bool


class AuditSpool:
    """The files of one process. Any thread may append; one thread takes.

    process: the start of the names of its files
    lost: how many entries could not be kept, and are not yet reported in the log
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.lost = folder, 0
        self.process = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._alive = FileLock(folder / f"{self.process}{LOCK_SUFFIX}", thread_local=False)
        self._alive.acquire()
        self._handle: int | None = None
        self._path, self._bytes, self._count = folder, 0, 0

    def append(self, draft: EntryDraft) -> None:
        """Keep an entry. See `extend`."""
        self.extend([draft])

    def extend(self, drafts: Sequence[EntryDraft]) -> None:
        """Keep entries, by one write. If the disk takes no more, or too much waits, they are counted in `lost`."""
        encoded = b"".join([draft.encode() for draft in drafts])
        with self._lock:
            lost = len(drafts) - encoded.count(b"\n", 0, self._write(encoded))
            if lost:
                self.lost += lost
                LOST_ENTRIES.inc(lost)

    def _write(self, encoded: bytes) -> int:
        """Return how many of the bytes were written."""
        if self._bytes + len(encoded) > MAX_WAITING_BYTES:
            return 0
        try:
            if self._handle is None:
                self._count += 1
                self._path = self.folder / f"{self.process}-{self._count}{SUFFIX}"
                self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            written = os.write(self._handle, encoded)
        except OSError:
            return 0
        self._bytes += written
        return written

    def forget_lost(self, count: int) -> None:
        """Lower `lost` by what the log has reported."""
        with self._lock:
            self.lost -= count

    def take(self) -> Segment | None:
        """Return the file with the entries that were appended since the last call; None if there are none."""
        with self._lock:
            if self._handle is None:
                return None
            os.close(self._handle)
            self._handle, self._bytes = None, 0
            return Segment(self._path, is_own=True)

    def take_abandoned(self) -> list[Segment]:
        """Return the files of processes that have died."""
        processes = {path.name.partition("-")[0] for path in self.folder.glob(f"*{SUFFIX}")} - {self.process}
        return [segment for process in sorted(processes) for segment in self._take_of_dead(process)]

    def _take_of_dead(self, process: str) -> Iterator[Segment]:
        lock = FileLock(self.folder / f"{process}{LOCK_SUFFIX}", thread_local=False)
        try:
            with lock.acquire(timeout=0):
                yield from [Segment(path, is_own=False) for path in sorted(self.folder.glob(f"{process}-*{SUFFIX}"))]
        except Timeout:
            return  # it lives

    def close(self) -> None:
        """End; the files that still exist are left to other processes."""
        self.take()
        self._alive.release()
        with suppress(OSError):  # a home that is read-only or gone; the next process finds nobody behind the lock
            Path(self._alive.lock_file).unlink(missing_ok=True)


def was_killed(folder: Path, process: str) -> bool:
    """Return whether the process whose files have this name was killed: its lock file is there, and nobody holds it.

    A process that ended by itself has removed the file. It does not count, as a thread of it may have gone on.
    """
    lock = FileLock(folder / f"{process}{LOCK_SUFFIX}", thread_local=False)
    try:
        if not Path(lock.lock_file).exists():
            return False
        with lock.acquire(timeout=0):
            return True
    except (Timeout, OSError):
        return False


def has_ended(folder: Path, process: str) -> bool:
    """Return whether the process whose files have this name has ended, or is about to: nobody holds its lock file.

    A thread of one that ended by itself may go on for some seconds.
    """
    return not (folder / f"{process}{LOCK_SUFFIX}").exists() or was_killed(folder, process)


def read_segment(segment: Segment) -> tuple[list[EntryDraft], int]:
    """Return the entries of a file, and how many of its lines are damaged. Raises OSError."""
    drafts, damaged = [], 0
    for encoded in segment.path.read_bytes().splitlines():
        try:
            drafts.append(EntryDraft.decode(encoded))
        except (ValueError, TypeError):
            damaged += 1
    return drafts, damaged
