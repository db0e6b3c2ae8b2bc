"""A thread that compares answered searches, one after the other, and adds the totals to the table in batches."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Full, Queue

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.db.session import writing
from app.errors import AppError
from app.serving.shadow.totals import ModelPair, Sums, add_sums, add_to_totals
from ml.errors import LikenessError

log = logging.getLogger("likeness.engine")

MAX_QUEUED_SEARCHES = 64
FLUSH_SECONDS = 1.0
MAX_UNSAVED_SEARCHES = 64
YIELD_SECONDS = 0.02
MAX_STOP_SECONDS = 2.0


@dataclass(frozen=True, eq=False)
class QueuedSearch:
    """A search to compare. faces: the number of its query faces; compare: returns what to add to the totals"""

    pair: ModelPair
    faces: int
    compare: Callable[[], Sums]


class ComparisonQueue:
    """At most `MAX_QUEUED_SEARCHES` wait; a search that finds the queue full is dropped and counted.

    The thread waits while requests wait for a slot, so that searches come first.
    count_waiting: returns how many requests wait
    """

    def __init__(self, database: Engine, count_waiting: Callable[[], int]) -> None:
        self._database, self._count_waiting = database, count_waiting
        self._queue: Queue[QueuedSearch | None] = Queue(MAX_QUEUED_SEARCHES)
        self._lock = threading.Lock()
        self._unsaved: dict[ModelPair, Sums] = {}
        self._unsaved_searches, self._saved_at = 0, time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="comparisons", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, count what waits as dropped, and save the totals."""
        self._stopping.set()
        try:
            self._queue.put_nowait(None)
        except Full:
            log.debug("shadow.stopping_with_full_queue")
        if self._thread.is_alive():
            self._thread.join(MAX_STOP_SECONDS)
        while not self._queue.empty():
            search = self._queue.get_nowait()
            if search is not None:
                self._count(search.pair, {"dropped": search.faces})
        self.save()

    def submit(self, search: QueuedSearch) -> None:
        """Queue a search that was answered, or count it as dropped. It never waits."""
        try:
            self._queue.put_nowait(search)
        except Full:
            self._count(search.pair, {"dropped": search.faces})

    def save(self) -> None:
        """Add what was counted to the tables. What cannot be added now is kept for the next time."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, {}
            self._unsaved_searches, self._saved_at = 0, time.monotonic()
        for pair, sums in unsaved.items():
            try:
                with writing(self._database) as session:
                    add_to_totals(session, pair, sums)
            except (AppError, SQLAlchemyError) as error:
                log.warning("shadow.not_saved collection=%s task=%s error=%s", *pair[:2], error)
                self._count(pair, sums)

    def _count(self, pair: ModelPair, sums: Sums) -> None:
        with self._lock:
            self._unsaved[pair] = add_sums(self._unsaved.get(pair, {}), sums)
            self._unsaved_searches += 1

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                search = self._queue.get(timeout=FLUSH_SECONDS if self._unsaved else None)
            except Empty:
                search = None
            if search is not None:
                self._compare(search)
            is_due = time.monotonic() - self._saved_at > FLUSH_SECONDS
            if self._unsaved and (is_due or self._unsaved_searches >= MAX_UNSAVED_SEARCHES):
                self.save()

    def _compare(self, search: QueuedSearch) -> None:
        while self._count_waiting() and not self._stopping.wait(YIELD_SECONDS):
            continue
        try:
            sums = search.compare()
        except (AppError, LikenessError) as error:
            log.debug("shadow.not_ready collection=%s task=%s error=%s", *search.pair[:2], error)
            sums = {"not_ready": search.faces}
        except Exception as error:
            log.error("shadow.failed collection=%s task=%s", *search.pair[:2], exc_info=error)
            sums = {"failed": search.faces}
        self._count(search.pair, sums)
