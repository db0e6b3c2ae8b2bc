"""Notice that this process does not hear of changes: that it was frozen, or that it alone has lost PostgreSQL.

The processes of a home leave signs for each other of what they reach.

While nobody reaches the database, nothing changes, and what a process holds in memory may be searched. Once others
reach it, they may revoke a key, or erase somebody, of whom this process would not hear. Nor would it while its follower
waits for an answer, or is held up, and other threads of the process are answered; nor while the process was frozen.
"""

import logging
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Engine, event

from app.db.servers.connections import SERVER_INFO
from app.errors import Busy

SIGNS_FOLDER = "database-reached"
"""In the home: a file for each process, which it touches while the database answers it."""
SIGN_SECONDS, COMPARISON_SECONDS = 1.0, 0.25
GRACE_SECONDS = 2.0
"""Signs are compared with those that are there so long after the loss: others may lose the database a little later."""
CONFIRMING_SECONDS = 1.0
"""For so long after another's sign the database must stay away: when it is back, all processes reach it by and by."""
OLD_SECONDS = 86_400.0
MAX_SILENCE_SECONDS = 9.0
"""For so long the follower may not have caught up. An erasure stops to wait for the process a few seconds later."""
SILENT_SECONDS = 5.0
"""After so long without any answer, while the follower waits for one, the database counts as lost."""
MAX_UNNOTED_SECONDS = 5.0
"""While the database is away, its loss is noted at least so often, unless the process is frozen."""
LOST_HERE = "the database cannot be reached from this process, but from others: what it holds may be out of date"
HELD_UP = "this process has not read the last changes of the database: what it holds may be out of date"
REACH_OPTION = "reach"

CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # which goes on while the machine is suspended
MIN_STEP_SECONDS = 2.0
"""A wall clock that is ahead by as much at once was set: by NTP, or since the machine did not run."""

log = logging.getLogger("likeness.database")


class SuspendAwareClock:
    """Counts seconds, those too in which the process, its container or its machine did not run. Threads may share it.

    A machine that its hypervisor pauses has no clock that has gone on, but its wall clock is set when it goes on, by
    its agent or NTP. Time that was never lost may be counted so; a pause of less than MIN_STEP_SECONDS is left out.
    """

    def __init__(self) -> None:
        self._known = time.time() - time.clock_gettime(CLOCK), 0.0  # how far the wall clock is ahead; seconds lost

    def read(self) -> float:
        """Return the seconds since some moment, which lies far back: only differences mean anything.

        Without a lock, which a forked process might never get: a step that a thread overwrites is seen again.
        """
        running = time.clock_gettime(CLOCK)
        ahead = time.time() - running
        before, lost = self._known
        if ahead - before >= MIN_STEP_SECONDS:
            lost += ahead - before
        self._known = ahead, lost
        return running + lost


_clock = SuspendAwareClock()
read_clock = _clock.read


def make_process_name() -> str:
    """Return a name for this process: its host, its number there, and a random part, joined by colons."""
    return f"{socket.gethostname()[:24]}:{os.getpid()}:{uuid4().hex[:8]}"


def leave_sign(path: Path, database: str | None) -> None:
    """Write, or touch, the sign of a process. It holds its own inode, which a copy of the file does not have.

    database: identity of the database that the process has reached; None: the sign says it already
    Raises OSError.
    """
    path.parent.mkdir(exist_ok=True)
    if database is None and path.exists():
        os.utime(path)
        return
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{os.fstat(file.fileno()).st_ino} {database or ''}")


def describe_database(connection: Connection | None) -> str:
    """Return what tells a database of PostgreSQL from others; empty where it does not let its user ask."""
    server = connection.info.get(SERVER_INFO) if connection is not None else None
    return "" if server is None else f"{server.system}/{server.database}"


class DatabaseReach:
    """Whether the database is lost, and by this process alone. Threads may share it.

    is_remote: whether the database is a server; SQLite, which lies in the home, is lost by all processes or by none
    is_alone: whether others have reached the database, and this process has not caught up since
    """

    def __init__(self, home: Path, is_remote: bool = True) -> None:
        self.is_remote = is_remote
        self._folder = home / SIGNS_FOLDER
        self._name = make_process_name().replace(":", "-")
        self._signed_at = self._compared_at = self._answered_at = float("-inf")
        self._caught_up_at = float("inf")
        self._noted_at = self._alone_at = float("-inf")
        self.is_alone = self._is_warned = self._is_noticed_in_time = False
        self._signed_database: str | None = None
        self._lost_at: float | None = None
        self._known: Mapping[str, int] | None = None
        self._other_at: float | None = None

    def note_answer(self, connection: Connection | None = None, *_: Any) -> None:
        """Note that the database has answered, and leave a sign of it for the others."""
        self._lost_at = None
        self._answered_at = now = read_clock()
        if now - self._signed_at >= SIGN_SECONDS:
            self._signed_at = now
            try:
                database = describe_database(connection)
                leave_sign(self._folder / self._name, database if database != self._signed_database else None)
                self._signed_database = database
            except OSError as error:
                if not self._is_warned:
                    log.warning("database.no_sign_left folder=%s error=%s", self._folder, error)
                self._is_warned = True
            else:
                self._is_warned = False

    def note_caught_up(self, began_at: float) -> None:
        """Note that this process has read what others have changed. Before the first time, it serves nothing.

        began_at: when it began to read, by `read_clock`: what was changed since, while it waited, it need not know
        """
        self._lost_at = None
        self._caught_up_at = began_at
        self.is_alone = self.is_alone and began_at < self._alone_at

    def note_loss(self) -> None:
        """Note that the database could not be reached, and look whether others reach it meanwhile."""
        now = read_clock()
        if self._lost_at is None or now - self._noted_at > MAX_UNNOTED_SECONDS:
            self._is_noticed_in_time = now - self._caught_up_at <= MAX_SILENCE_SECONDS
        self._noted_at = now
        if self._lost_at is None:
            self._lost_at, self._known, self._other_at = now, None, None
        if not self.is_remote or self.is_alone or now - self._compared_at < COMPARISON_SECONDS:
            return
        self._compared_at = now
        if self._known is None:
            if now - self._lost_at >= GRACE_SECONDS:
                self._known = self._read_signs() or {}
        elif self._other_at is None:
            known = self._known
            signs = self._read_signs()
            if signs is None or any(known.get(name) != at for name, at in signs.items()):
                self._other_at = now
        elif now - self._other_at >= CONFIRMING_SECONDS:
            log.error("database.lost_here others_reach_it=true")
            self.is_alone, self._alone_at = True, now

    def note_silence(self) -> None:
        """Note that the database is lost if it was before, or if it has answered nobody for a while.

        A proxy or a server that hangs closes no connection, so that no statement ever fails. To be called all the time.
        """
        last_answer_at = max(self._answered_at, self._caught_up_at)
        is_silent = self.is_remote and read_clock() - last_answer_at > SILENT_SECONDS
        if self._lost_at is not None or is_silent:
            self.note_loss()

    def find_fault(self) -> str | None:
        """Return why this process must not answer; None if it may."""
        if self.is_alone:
            return LOST_HERE
        now = read_clock()
        if now - self._caught_up_at <= MAX_SILENCE_SECONDS:
            return None
        is_loss_known = self._lost_at is not None and now - self._noted_at <= MAX_UNNOTED_SECONDS
        return None if is_loss_known and self._is_noticed_in_time else HELD_UP

    def check(self) -> None:
        """Raises Busy while this process alone has lost the database, or its follower is held up."""
        fault = self.find_fault()
        if fault is not None:
            raise Busy(fault)

    def _read_signs(self) -> dict[str, int] | None:
        """Return when each process has last left a sign, in nanoseconds by the clock of the file system.

        None if they cannot be read, so that others may reach the database. Before the first sign there is no folder.
        """
        signs = dict[str, int]()
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    with suppress(OSError):
                        signs[entry.name] = entry.stat().st_mtime_ns
        except FileNotFoundError:
            return {}
        except OSError:
            return None
        return signs

    def remove_old_signs(self) -> None:
        """Remove the signs of processes that have ended long ago."""
        before = time.time() - OLD_SECONDS
        with suppress(OSError):
            for path in self._folder.iterdir():
                with suppress(OSError):
                    if path.stat().st_mtime < before:
                        path.unlink()


def watch_reach(database: Engine, home: Path | None) -> None:
    """Have the processes of a home note what of the database they reach. home: None: of no service"""
    if home is None or not home.is_dir():
        return
    reach = DatabaseReach(home, is_remote=database.dialect.name != "sqlite")
    if reach.is_remote:
        reach.remove_old_signs()
        event.listen(database, "after_cursor_execute", reach.note_answer)
    database.update_execution_options(**{REACH_OPTION: reach})


def find_reach(database: Engine) -> DatabaseReach | None:
    """Return what notes whether the database is reached; None where there is no home."""
    reach: DatabaseReach | None = database.get_execution_options().get(REACH_OPTION)
    return reach
