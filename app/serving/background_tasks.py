"""Slow work beside the follower, so that a moved pointer never waits for it: loading, building, measuring, saving."""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

log = logging.getLogger("likeness.engine")

AT_ONCE = 2
Result = TypeVar("Result")


class Chores:
    """Each in a thread of its own, two at once; the follower's thread alone starts them and asks after them."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._room, self._tell = threading.Semaphore(AT_ONCE), done
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._awaited: set[Hashable] = set()

    def start(self, key: Hashable, work: Callable[[], object]) -> Future[Any]:
        """Once for a key, until it is done."""
        if key not in self._under_way:
            future = self._under_way[key] = Future[Any]()
            threading.Thread(target=self._do, args=(future, work), name="chore", daemon=True).start()
        return self._under_way[key]

    def busy(self, key: Hashable) -> bool:
        """Whether work with this key is under way, or done and not tidied up: it would not be started anew."""
        return key in self._under_way

    def result(self, key: Hashable, work: Callable[[], Result]) -> Result | None:
        """What it gave, once it has; None until then: ask again at the next step. Raises what it raised."""
        future = self.start(key, work)
        if not future.done():
            self._awaited.add(key)
            return None
        del self._under_way[key]
        found: Result = future.result()
        return found

    def tidy(self) -> None:
        """After a step: what is done and was not asked for is let go, since nobody wants it any more."""
        for key, future in list(self._under_way.items()):
            if future.done() and key not in self._awaited:
                del self._under_way[key]
                if future.exception() is not None:
                    log.error("chore.failed key=%s", key, exc_info=future.exception())
        self._awaited.clear()

    def finish(self, seconds: float) -> None:
        """Waits so long at most for those under way; the others end with the process."""
        wait(self._under_way.values(), seconds)

    def _do(self, future: Future[Any], work: Callable[[], object]) -> None:
        started = time.monotonic()
        with self._room:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        log.debug("chore.done s=%.2f", time.monotonic() - started)
        self._tell()
