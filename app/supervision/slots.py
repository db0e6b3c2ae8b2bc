"""The process of a role: whether it is ready, and when it is started again after its end."""

import os
import signal
import time

from app.supervision.children import CANNOT_GO_ON, READY, Child, Role, start_child

MIN_LIFE_SECONDS = 5.0
"""A process that ended sooner has died at once."""
FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.25, 10.0


class Slot:
    """The process of a role, and when it may be started if there is none.

    child: the process, None while it does not run
    reader: the pipe that will say whether the process is ready, None if it has
    was_ready: whether a process of this slot has ever been ready
    cannot_go_on: whether the last process said at its end that another one would end, too
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self.child: Child | None = None
        self.reader: int | None = None
        self.is_ready = self.was_ready = self.cannot_go_on = False
        self.start_at = 0.0  # by the monotonic clock
        self._early_ends = 0

    @property
    def is_due(self) -> bool:
        """Whether the process must be started now."""
        return self.child is None and time.monotonic() >= self.start_at

    def start(self) -> None:
        """Start the process."""
        self.child = start_child(self.role)
        self.reader = self.child.reader

    def read_progress(self) -> None:
        """Note whether the process is ready. Call it when the pipe has something to read, or has ended."""
        assert self.reader is not None
        self.is_ready = os.read(self.reader, 1) == READY
        self.was_ready = self.was_ready or self.is_ready
        self._close_pipe()

    def note_end(self, status: int) -> None:
        """Note that the process has ended. status: as `os.waitpid` returns it"""
        assert self.child is not None
        died_at_once = time.monotonic() - self.child.started_at < MIN_LIFE_SECONDS
        self._early_ends = self._early_ends + 1 if died_at_once else 0
        self.start_at = time.monotonic() + compute_delay(self._early_ends)
        self.child, self.is_ready = None, False
        self.cannot_go_on = os.waitstatus_to_exitcode(status) == CANNOT_GO_ON
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self.reader is not None:
            os.close(self.reader)
            self.reader = None


def compute_delay(early_ends: int) -> float:
    """Return the seconds until a process is started again. early_ends: how often in a row it has died at once"""
    if early_ends < 2:
        return 0.0
    return min(FIRST_DELAY_SECONDS * 2.0 ** (early_ends - 2), MAX_DELAY_SECONDS)


def describe_status(status: int) -> str:
    """Describe how a process has ended, from what `os.waitpid` returns."""
    code = os.waitstatus_to_exitcode(status)
    return f"signal={signal.Signals(-code).name}" if code < 0 else f"code={code}"
