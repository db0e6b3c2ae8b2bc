"""Keep the processes of a service running, and stop or reload them at a signal.

The supervisor has one thread and no open database, so that it can fork at any time.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from app.supervision.children import DRAIN_SIGNAL, HANDLED_SIGNALS, Role
from app.supervision.signals import SignalQueue
from app.supervision.slots import Slot, describe_status

log = logging.getLogger("likeness.supervisor")

MAX_STOP_SECONDS = 8.0
RETRY_SECONDS = 0.5
"""How often it looks whether processes may be started that may not be started now."""
CANNOT_START = 1


@dataclass
class Predecessors:
    """Processes of the supervisor before a reload, by their ids. They end when those that replace them are ready."""

    api: set[int] = field(default_factory=set)
    workers: set[int] = field(default_factory=set)


class Supervisor:
    """Runs a process for each role.

    api: roles whose processes are started first
    list_workers: returns the roles of the others; is called when the API is ready, since it may take a while
    may_start: whether a process that has ended may be started again now
    reload: replaces this program by a new one, to which it leaves the processes; returns if that cannot be done
    """

    def __init__(
        self,
        api: Sequence[Role],
        list_workers: Callable[[], Sequence[Role]],
        may_start: Callable[[], bool] = lambda: True,
        reload: Callable[[Predecessors], None] = lambda _: None,
        predecessors: Predecessors | None = None,
    ) -> None:
        self.api, self.workers = [Slot(role) for role in api], list[Slot]()
        self.list_workers = list_workers
        self.may_start, self.reload = may_start, reload
        self.predecessors = predecessors or Predecessors()
        self._has_workers = self._stops = False
        self._queue = SignalQueue()

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, and stop all processes. Returns the exit code.

        It gives up if a process of the API cannot go on, or ends before it was ever ready, unless it replaces one that
        serves.
        """
        with self._queue.receive(HANDLED_SIGNALS):
            self._reap()  # what has ended during a reload
            while not self._stops and not self._has_failed():
                self._start_due()
                self._wait(self._find_timeout())
                self._handle_signals()
            has_failed = not self._stops
            self._stop()
        return CANNOT_START if has_failed else 0

    def _has_failed(self) -> bool:
        ended = [slot for slot in self.api if slot.child is None and slot.start_at > 0]
        if any(slot.cannot_go_on for slot in ended):
            return True
        return not self.predecessors.api and any(not slot.was_ready for slot in ended)

    def _start_due(self) -> None:
        if not self._has_workers and all(slot.is_ready for slot in self.api):
            self._has_workers = True
            self.workers = [Slot(role) for role in self.list_workers()]
            _send(self.predecessors.api, DRAIN_SIGNAL)
            _send(self.predecessors.workers, signal.SIGTERM)
        due = [slot for slot in (*self.api, *self.workers) if slot.is_due]
        if due and self.may_start():
            for slot in due:
                slot.start()

    def _find_timeout(self) -> float | None:
        """Return how long to wait for a signal; None if there is nothing else to wait for."""
        waiting = [slot.start_at - time.monotonic() for slot in (*self.api, *self.workers) if slot.child is None]
        return max(RETRY_SECONDS if min(waiting) <= 0 else 0.0, min(waiting)) if waiting else None

    def _wait(self, seconds: float | None) -> None:
        """Wait for a signal or the progress of a process, and note which processes are ready or have ended."""
        slots = {slot.reader: slot for slot in (*self.api, *self.workers) if slot.reader is not None}
        for reader in self._queue.wait(list(slots), seconds):
            slots[reader].read_progress()
        self._reap()

    def _handle_signals(self) -> None:
        received = self._queue.take()
        self._stops = signal.SIGTERM in received or signal.SIGINT in received
        if signal.SIGHUP in received and not self._stops:
            self.reload(Predecessors(self._list_api(), self._list_workers()))

    def _list_api(self) -> set[int]:
        return self.predecessors.api | {slot.child.pid for slot in self.api if slot.child is not None}

    def _list_workers(self) -> set[int]:
        return self.predecessors.workers | {slot.child.pid for slot in self.workers if slot.child is not None}

    def _reap(self) -> None:
        """Note which processes have ended. As the first process of a container, it inherits those of others too."""
        while (ended := _wait_for_any()) is not None:
            pid, status = ended
            self.predecessors.api.discard(pid)
            self.predecessors.workers.discard(pid)
            for slot in (*self.api, *self.workers):
                if slot.child is not None and slot.child.pid == pid:
                    slot.note_end(status)
                    if not self._stops:
                        log.warning("process.ended name=%r pid=%d %s", slot.role.name, pid, describe_status(status))

    def _stop(self) -> None:
        """Stop the API, so that nothing new is accepted, and then the workers."""
        self._stops = True
        for list_running in (self._list_api, self._list_workers):
            _send(list_running(), signal.SIGTERM)
            stop_at = time.monotonic() + MAX_STOP_SECONDS
            while list_running() and time.monotonic() < stop_at:
                self._wait(stop_at - time.monotonic())
            _send(list_running(), signal.SIGKILL)
        while self._list_api() or self._list_workers():
            self._wait(RETRY_SECONDS)


def _send(processes: set[int], number: signal.Signals) -> None:
    """Send a signal to children of this process, which exist until it has waited for them."""
    for pid in processes:
        os.kill(pid, number)


def _wait_for_any() -> tuple[int, int] | None:
    """Return the id and the status of a child that has ended; None if there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None
