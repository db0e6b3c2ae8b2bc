"""Run slow work beside the follower, so that a moved pointer never waits: loading, building, calibrating, saving."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from app.allocator import trim_heaps

log = logging.getLogger("likeness.engine")

MAX_RUNNING_TASKS, MAX_RUNNING_URGENT_TASKS = 2, 1
MIN_ANNOUNCEMENT_SECONDS = 0.5
Result = TypeVar("Result")
Task = tuple[Future[Any], Callable[[], object]]


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


class _TaskQueue:
    """Tasks that wait for one of a few threads."""

    def __init__(self, max_threads: int) -> None:
        self.max_threads, self.thread_count, self.waiting = max_threads, 0, deque[Task]()


class BackgroundTasks:
    """Two tasks run at once, and beside them one urgent task, which does not wait for the others. Their threads end
    when none waits. Only the follower's thread starts tasks and takes results.

    done: announces that tasks have ended; of many short ones at most every MIN_ANNOUNCEMENT_SECONDS, since the follower
        then looks at all deployments
    """

    def __init__(self, done: Callable[[], None]) -> None:
        self._done, self._announced_at = done, -math.inf
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._awaited: set[Hashable] = set()
        self._lock = threading.Lock()  # held to change the queues
        self._queue, self._urgent_queue = _TaskQueue(MAX_RUNNING_TASKS), _TaskQueue(MAX_RUNNING_URGENT_TASKS)

    def start(self, key: Hashable, work: Callable[[], object], *, is_urgent: bool = False) -> Future[Any]:
        """Start the work, unless a task with this key is under way."""
        if key not in self._under_way:
            future, queue = Future[Any](), self._urgent_queue if is_urgent else self._queue
            self._under_way[key] = future
            with self._lock:
                queue.waiting.append((future, work))
                needs_thread = queue.thread_count < queue.max_threads
                queue.thread_count += needs_thread
            if needs_thread:
                threading.Thread(target=self._run, args=(queue,), name="background-task", daemon=True).start()
        return self._under_way[key]

    def busy(self, key: Hashable) -> bool:
        """Whether a task with this key is under way, or finished and not tidied up."""
        return key in self._under_way

    def result(self, key: Hashable, work: Callable[[], Result], *, is_urgent: bool = False) -> Result | None:
        """The result of the work; None while it is under way, so call again at the next step. Raises what it raised."""
        future = self.start(key, work, is_urgent=is_urgent)
        if not future.done():
            self._awaited.add(key)
            return None
        del self._under_way[key]
        result: Result = future.result()
        return result

    def discard(self, key: Hashable) -> None:
        """Forget a task that is under way, whose result is of no use any more. The next one may begin beside it."""
        self._under_way.pop(key, None)

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

    def _run(self, queue: _TaskQueue) -> None:
        """Do what waits, one task after the other."""
        while (task := self._take(queue)) is not None:
            started = time.monotonic()
            future, work = task
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
            log.debug("background_task.done s=%.2f", time.monotonic() - started)
            del future, work, task  # a result may be as large as an index
            self._announce(queue)
        trim_heaps()  # what they computed with may have been as large as an index

    def _take(self, queue: _TaskQueue) -> Task | None:
        with self._lock:
            if queue.waiting:
                return queue.waiting.popleft()
            queue.thread_count -= 1
            return None

    def _announce(self, queue: _TaskQueue) -> None:
        now = time.monotonic()
        with self._lock:
            if queue.waiting and now - self._announced_at < MIN_ANNOUNCEMENT_SECONDS:
                return
            self._announced_at = now
        try:
            self._done()
        except Exception:  # as when Redis is being closed: the thread goes on, and the follower looks by itself
            log.exception("background_task.not_announced")
