"""Run slow work beside the follower, so that a moved pointer never waits: loading, building, calibrating, saving."""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

log = logging.getLogger("likeness.engine")

MAX_RUNNING_TASKS = 2
Result = TypeVar("Result")


class BackgroundTasks:
    """Two tasks run at once, each in its own thread. Only the follower's thread starts them and takes results."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._running, self._done = threading.Semaphore(MAX_RUNNING_TASKS), done
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._awaited: set[Hashable] = set()

    def start(self, key: Hashable, work: Callable[[], object]) -> Future[Any]:
        """Start the work, unless a task with this key is under way."""
        if key not in self._under_way:
            future = self._under_way[key] = Future[Any]()
            threading.Thread(target=self._run, args=(future, work), name="background-task", daemon=True).start()
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

    def _run(self, future: Future[Any], work: Callable[[], object]) -> None:
        started = time.monotonic()
        with self._running:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        log.debug("background_task.done s=%.2f", time.monotonic() - started)
        self._done()
