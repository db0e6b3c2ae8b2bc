"""Slots, and company in them: what waits for a slot is taken together when one is free."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from app.errors import Busy

In = TypeVar("In")
Out = TypeVar("Out")
Work = Callable[[list[Any]], Sequence[Any]]

TOGETHER = 16
WAITING = 32  # fewer than the request threads, so that probes and lists are answered whatever waits


class _Ticket:
    """One that waits: for a result, for an error, or to be called with a batch to do itself."""

    def __init__(self, key: Hashable, item: Any) -> None:
        self.key, self.item = key, item
        self.called = threading.Event()
        self.batch: list[_Ticket] = []
        self.result: Any = None
        self.error: Exception | None = None


class Slots:
    """At most `count` do heavy work at once. A lone request waits for nobody; those that had to wait for a slot are
    taken with all others of their kind, up to `TOGETHER`, by the first of them.

    Raises Busy where `patience` seconds did not bring a slot, or too many wait already.
    """

    def __init__(self, count: int, patience: float) -> None:
        self.count, self.patience = count, patience
        self._lock = threading.Lock()
        self._free = count
        self._waiting: list[_Ticket] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def together(self, key: Hashable, item: In, work: Callable[[list[In]], Sequence[Out]]) -> Out:
        """`work([item])[0]`, maybe done with the items of others who gave an equal key."""
        ticket = self._enter(key, item)
        if ticket.batch:  # else somebody did it for us
            try:
                _do(ticket.batch, work)
            finally:
                self._leave()
                for other in ticket.batch[1:]:
                    other.called.set()
        if ticket.error is not None:
            raise ticket.error
        result: Out = ticket.result
        return result

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A slot for work that nobody can share."""
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
            if len(self._waiting) >= WAITING:
                raise Busy(f"{WAITING} requests wait already; try again shortly")
            self._waiting.append(ticket)
        if not ticket.called.wait(self.patience) and self._gave_up(ticket):
            raise Busy(f"no slot came free in {self.patience:g} s; try again shortly")
        ticket.called.wait()
        return ticket

    def _gave_up(self, ticket: _Ticket) -> bool:
        with self._lock:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                return True
        return False

    def _leave(self) -> None:
        """The slot goes to the first that waits, and those of its kind come along."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            first = self._waiting[0]
            first.batch = [t for t in self._waiting if t.key == first.key][:TOGETHER]
            self._waiting = [t for t in self._waiting if t not in first.batch]
        first.called.set()


def _do(batch: list[_Ticket], work: Work) -> None:
    """Each gets its result; where the batch fails, each is tried by itself, so that one bad item spoils no other."""
    try:
        for ticket, result in zip(batch, work([t.item for t in batch]), strict=True):
            ticket.result = result
    except Exception as error:
        if len(batch) == 1:
            batch[0].error = error
            return
        for ticket in batch:
            _do([ticket], work)
