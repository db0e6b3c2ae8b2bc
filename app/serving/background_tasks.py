"""Run slow work beside the follower, so that a moved pointer never waits: loading, building, calibrating, saving."""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from app.allocator import trim_heaps

log = logging.getLogger("likeness.engine")

MAX_RUNNING_TASKS = 2
Result = TypeVar("Result")


def start_thread(work: Callable[[], Result], name: str) -> Future[Result]:
    """Do the work in a thread of its own, which does not hold up the end of the process."""
    future = Future[Result]()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class BackgroundTasks:
    """Two tasks run at once, each in its own thread. Only the follower's thread starts them and takes results."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._running, self._done = threading.Semaphore(MAX_RUNNING_TASKS), done
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._awaited: set[Hashable] = set()

    def start(self, key: Hashable, work: Callable[[], object]) -> Future[Any]:
        """Start the work, unless a task with this key is under way."""
        if key not in self._under_way:
            future = self._under_way[key] = start_thread(partial(self._run, work), "background-task")
            future.add_done_callback(lambda _: self._done())
        return self._under_way[key]

    def busy(self, key: Hashable) -> bool:
        """Whether a task with this key is under way, or finished and not tidied up."""
        return key in self._under_way

    def result(self, key: Hashable, work: Callable[[], Result]) -> Result | None:
        """The result of the work; None while it is under way, so call again at the next step. Raises what it raised."""
        future = self.start(key, work)
        if not future.done():
            self._awaited.add(key)
            return None
        del self._under_way[key]
        result: Result = future.result()
        return result

    def tidy(self) -> None:
        """After a step: drop finished tasks whose result no caller waits for, and log their errors."""
        for key, future in list(self._under_way.items()):
            if future.done() and key not in self._awaited:
                del self._under_way[key]
                if future.exception() is not None:
                    log.error("background_task.failed key=%s", key, exc_info=future.exception())
        self._awaited.clear()

    def finish(self, seconds: float) -> None:
        """Wait at most this long for the tasks under way; later ones end with the process."""
        wait(self._under_way.values(), seconds)

    def _run(self, work: Callable[[], Result]) -> Result:
        started = time.monotonic()
        with self._running:
            try:
                return work()
            finally:
                trim_heaps()  # what it computed with may have been as large as an index
                log.debug("background_task.done s=%.2f", time.monotonic() - started)
