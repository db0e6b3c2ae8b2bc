"""Limit concurrent inference, and batch the requests that are waiting."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from app.errors import Busy

In = TypeVar("In")
Out = TypeVar("Out")
Work = Callable[[list[Any]], Sequence[Any]]

MAX_BATCH_ITEMS = 16
MAX_WAITING_REQUESTS = 32
"""Fewer than the request threads, so that probes and lists are answered even if this many requests wait."""


class _Ticket:
    """A waiting request: it gets a result, an error, or a batch to compute itself."""

    def __init__(self, key: Hashable, item: Any) -> None:
        self.key, self.item = key, item
        self.called = threading.Event()
        self.batch: list[_Ticket] = []
        self.result: Any = None
        self.error: Exception | None = None


class Slots:
    """Slots for heavy work, so that at most `count` requests do it at once.

    Requests that wait for a slot with the same key are batched, up to MAX_BATCH_ITEMS, and the first of them does the
    work of all. Raises Busy if no slot is free within `patience` seconds, or too many requests wait already.
    """

    def __init__(self, count: int, patience: float) -> None:
        self.count, self.patience = count, patience
        self._lock = threading.Lock()
        self._free = count
        self._waiting: list[_Ticket] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def run_batched(self, key: Hashable, item: In, work: Callable[[list[In]], Sequence[Out]]) -> Out:
        """Return `work([item])[0]`, which may be computed in one batch with items of requests with an equal key."""
        ticket = self._enter(key, item)
        if ticket.batch:  # otherwise another request did the work
            try:
                _compute_batch(ticket.batch, work)
            finally:
                self._leave()
                for other in ticket.batch[1:]:
                    other.called.set()
        if ticket.error is not None:
            raise ticket.error
        result: Out = ticket.result
        return result

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Hold a slot for work that cannot be batched."""
        self._enter(object(), None)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, key: Hashable, item: Any) -> _Ticket:
        ticket = _Ticket(key, item)
        with self._lock:
            if self._free:
                self._free -= 1
                ticket.batch = [ticket]
                return ticket
            if len(self._waiting) >= MAX_WAITING_REQUESTS:
                raise Busy(f"{MAX_WAITING_REQUESTS} requests are waiting already; try again shortly")
            self._waiting.append(ticket)
        if not ticket.called.wait(self.patience) and self._gave_up(ticket):
            raise Busy(f"no slot was free within {self.patience:g} s; try again shortly")
        ticket.called.wait()
        return ticket

    def _gave_up(self, ticket: _Ticket) -> bool:
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                return True
        return False

    def _leave(self) -> None:
        """Pass the slot to the first waiting request, with all others of its key as its batch."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            first = self._waiting[0]
            first.batch = [t for t in self._waiting if t.key == first.key][:MAX_BATCH_ITEMS]
            self._waiting = [t for t in self._waiting if t not in first.batch]
        first.called.set()


def _compute_batch(batch: list[_Ticket], work: Work) -> None:
    """Give each ticket its result. If the batch fails, compute each item separately, so that only bad items fail."""
    try:
        for ticket, result in zip(batch, work([t.item for t in batch]), strict=True):
            ticket.result = result
    except Exception as error:
        if len(batch) == 1:
            batch[0].error = error
            return
        for ticket in batch:
            _compute_batch([ticket], work)
