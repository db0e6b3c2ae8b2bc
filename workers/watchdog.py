"""End a worker process whose job does not stop when it has to, or takes more memory than the machine can spare."""

import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from app.errors import Conflict
from workers.context import JobContext

log = logging.getLogger("likeness.worker")
CHECK_SECONDS = 1.0
MAX_STOP_SECONDS = 20.0
"""How long a job may go on after it was cancelled or taken over, or after its deadline."""
MAX_MEMORY_SHARE = 0.6
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class WatchedWorker(Protocol):
    """A worker, and the job that it runs; see `workers.worker.Worker`."""

    current: JobContext | None

    def end_interrupted(self, job_id: str) -> None: ...

    def end_failed(self, job_id: str, error: Exception) -> None: ...


class Watchdog:
    """Check the job that a worker runs, once a second.

    Options of methods have no limits that would bound a step's time and memory, and a step may not look whether it has
    to stop. The supervisor starts another worker in place of a process that has ended.

    max_bytes: of resident memory; exit_process: ends the process
    """

    def __init__(
        self, worker: WatchedWorker, max_bytes: float, exit_process: Callable[[int], object] = os._exit
    ) -> None:
        self._worker, self._max_bytes, self._exit_process = worker, max_bytes, exit_process
        self._told: tuple[JobContext, float] | None = None

    def start(self) -> None:
        """Check until the process ends."""
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(CHECK_SECONDS)
            self.check(time.monotonic())

    def check(self, at: float) -> None:
        """End the job and the process if a limit is exceeded. at: the time, on the monotonic clock"""
        context = self._worker.current
        if context is None:
            return
        if read_resident_bytes() > self._max_bytes:
            limit = f"{self._max_bytes / 2**30:.1f} GiB, {MAX_MEMORY_SHARE:.0%} of the memory there is"
            error = Conflict(
                f"the job took more than {limit}: choose smaller options or less data", code="TooMuchMemory"
            )
            self._end(context, "memory", lambda: self._worker.end_failed(context.job_id, error))
        elif context.interrupted.is_set():
            if self._told is None or self._told[0] is not context:
                self._told = context, at
            elif at - self._told[1] > MAX_STOP_SECONDS:
                self._end(context, "does not stop", lambda: self._worker.end_interrupted(context.job_id))
        elif at > context.deadline + MAX_STOP_SECONDS:
            self._end(context, "time", lambda: self._worker.end_failed(context.job_id, context.describe_timeout()))

    def _end(self, context: JobContext, reason: str, end_job: Callable[[], None]) -> None:
        log.error("worker.killed job_id=%s reason=%s", context.job_id, reason)
        try:
            end_job()
        finally:  # another worker takes the job up if it could not be ended
            self._exit_process(1)


def read_resident_bytes() -> int:
    """Return the resident memory of this process; where the system does not say, the most that it ever had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def limit_memory() -> float:
    """Return the bytes that a job may take: a share of what the machine, or the container, has."""
    total = float(os.sysconf("SC_PHYS_PAGES")) * resource.getpagesize()
    try:
        total = min(total, float(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):
        log.debug("there is no limit of a container, or it is `max`")
    return MAX_MEMORY_SHARE * total
