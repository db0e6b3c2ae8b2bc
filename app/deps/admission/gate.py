"""Limit the requests that run at once, let the others wait by deadline, and refuse those that would wait too long.

Used on the event loop only, so it needs no lock.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from app.deps.admission.work import REQUESTS, WAIT_SECONDS, Work
from app.errors import Busy

WAIT_FACTOR = 1.0
"""A request may wait for this many times the seconds that its class takes, and is then answered in twice its time."""
FIRST_ESTIMATE_SECONDS = {Work.SEARCH: 0.005, Work.PHOTO: 0.03, Work.WRITE: 0.02, Work.READ: 0.01}
ESTIMATE_WEIGHT = 0.05
"""The weight of the latest request in the estimate of its class."""
MAX_SLOT_SECONDS = 0.5
"""A request that runs for longer waits for something else than a core, such as a lock: its slot is passed on."""
EXCESS_SECONDS = 0.5
"""How long requests count that came beyond those that were answered."""
MAX_OVERLOAD_SECONDS = 30.0
"""Then the count starts again, so that a few clients which repeat refused requests at once do not keep it up."""
MAX_RUNNING_REQUESTS = 32
"""In all, with those whose slots were passed on. Fewer than the request threads, so that probes are answered."""


@dataclass(eq=False)
class Ticket:
    """A request that waits for a slot or runs. Times are of the gate's clock."""

    work: Work
    arrived_at: float
    deadline: float
    started_at: float = 0.0
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _FadingCount:
    """A count, never below 0, of which all but 1/e fades within EXCESS_SECONDS."""

    def __init__(self) -> None:
        self._count, self._counted_at = 0.0, 0.0

    def add(self, change: float, now: float) -> None:
        self._count, self._counted_at = max(0.0, self.read(now) + change), now

    def clear(self) -> None:
        self._count = 0.0

    def may_exceed(self, limit: float) -> bool:
        """Whether it was above the limit when it last changed; it only fades since."""
        return self._count > limit

    def read(self, now: float) -> float:
        return self._count * math.exp((self._counted_at - now) / EXCESS_SECONDS)


class AdmissionGate:
    """The slots of an API process.

    A request whose turn would come after its deadline is refused at once. Its deadline is WAIT_FACTOR times the
    seconds that requests of its class have taken lately, so a slow machine waits for longer. The nearest deadline is
    served first.

    slots: requests that run at once; under overload one less, which leaves a core to the refusals
    min_queue: requests that may wait whatever their deadlines, so that a client with a few connections is not refused
    patience_seconds: how long any request waits at most
    """

    def __init__(
        self, slots: int, min_queue: int, patience_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.slots, self.min_queue, self.patience_seconds, self._clock = slots, min_queue, patience_seconds, clock
        self.estimates = dict(FIRST_ESTIMATE_SECONDS)
        self._waiting: dict[Work, deque[Ticket]] = {work: deque() for work in Work}
        self._active: set[Ticket] = set()
        self._overdue: set[Ticket] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._excess = _FadingCount()
        self._overload_ends_at: float | None = None
        self._counters: dict[Work, tuple[Callable[[], None], Callable[[float], None]]] = {}

    @property
    def is_overloaded(self) -> bool:
        """Whether, lately, more than `min_queue` requests have come beyond those that were answered.

        Clients that each send one request after another never bring this about, if there are at most `min_queue`.
        """
        return self._excess.may_exceed(self.min_queue) and self._excess.read(self._clock()) > self.min_queue

    @property
    def open_slots(self) -> int:
        """The number of requests that may run at once now."""
        return max(1, self.slots - 1) if self.is_overloaded else self.slots

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a slot."""
        return sum(map(len, self._waiting.values()))

    def check(self, work: Work) -> None:
        """Raises Busy if a request that came now would be refused."""
        self._limit_overload()
        is_crowded = self.is_overloaded or self.waiting >= self.min_queue
        if is_crowded and self.predict_wait(work) > self._budget(work):
            self._excess.add(1.0, self._clock())
            REQUESTS.labels(work, "refused").inc()
            raise Busy("more requests arrive than can be answered in time; try again shortly")

    def predict_wait(self, work: Work) -> float:
        """Return the seconds that a request which came now would wait for a slot."""
        if len(self._active) < self.open_slots:
            return 0.0
        now = self._clock()
        deadline = now + self._budget(work)
        running = sum(max(0.0, self.estimates[t.work] - (now - t.started_at)) for t in self._active)
        ahead = sum(self.estimates[t.work] for t in self._list_waiting() if t.deadline <= deadline)
        return (running + ahead) / self.open_slots

    async def enter(self, work: Work) -> Ticket:
        """Wait for a slot. Raises Busy if it would come too late, or does."""
        self.check(work)
        now = self._clock()
        self._excess.add(1.0, now)
        ticket = Ticket(work, now, now + self._budget(work))
        self._waiting[work].append(ticket)
        self._dispatch()
        try:
            await ticket.granted
        except BaseException:
            self._withdraw(ticket)
            raise
        self._count_admitted(work, ticket.started_at - ticket.arrived_at)
        return ticket

    def has_free_slot(self) -> bool:
        """Whether a request that came now would neither wait nor be refused."""
        is_full = len(self._active) >= self.slots or len(self._active) + len(self._overdue) >= MAX_RUNNING_REQUESTS
        return not is_full and not self.waiting and not self.is_overloaded

    def count_at_once(self, work: Work, seconds: float) -> None:
        """Count a request that found a free slot, held it for these seconds, and let nothing else run meanwhile."""
        self._estimate(work, seconds)
        self._count_admitted(work, 0.0)

    def leave(self, ticket: Ticket) -> None:
        """Give the slot back. A second call does nothing."""
        if ticket not in self._active and ticket not in self._overdue:
            return
        self._estimate(ticket.work, self._clock() - ticket.started_at)
        self._active.discard(ticket)
        self._overdue.discard(ticket)
        self._excess.add(-1.0, self._clock())
        self._dispatch()

    def _estimate(self, work: Work, seconds: float) -> None:
        self.estimates[work] += ESTIMATE_WEIGHT * (min(seconds, MAX_SLOT_SECONDS) - self.estimates[work])

    def _count_admitted(self, work: Work, waited_seconds: float) -> None:
        if work not in self._counters:  # to look labels up takes longer than to count
            self._counters[work] = REQUESTS.labels(work, "admitted").inc, WAIT_SECONDS.labels(work).observe
        count, observe = self._counters[work]
        count()
        observe(waited_seconds)

    def _limit_overload(self) -> None:
        now = self._clock()
        if not self.is_overloaded:
            self._overload_ends_at = None
        elif self._overload_ends_at is None:
            self._overload_ends_at = now + MAX_OVERLOAD_SECONDS
        elif now >= self._overload_ends_at:
            self._overload_ends_at = None
            self._excess.clear()

    def _budget(self, work: Work) -> float:
        return WAIT_FACTOR * self.estimates[work]

    def _list_waiting(self) -> Iterable[Ticket]:
        return (ticket for queue in self._waiting.values() for ticket in queue)

    def _dispatch(self) -> None:
        """Refuse who has waited too long, pass on slots that are held too long, and grant what is free."""
        now = self._clock()
        for queue in self._waiting.values():
            while queue and self._is_late(queue[0], now):
                _refuse(queue.popleft())
        overdue = {t for t in self._active if now - t.started_at >= MAX_SLOT_SECONDS}
        self._active -= overdue
        self._overdue |= overdue
        while len(self._active) < self.open_slots and len(self._active) + len(self._overdue) < MAX_RUNNING_REQUESTS:
            heads = [queue[0] for queue in self._waiting.values() if queue]
            if not heads:
                break
            ticket = min(heads, key=lambda t: t.deadline)
            self._waiting[ticket.work].popleft()
            if ticket.granted.done():  # the client has gone
                continue
            ticket.started_at = now
            self._active.add(ticket)
            ticket.granted.set_result(None)
        self._set_timer(now)

    def _is_late(self, ticket: Ticket, now: float) -> bool:
        if now - ticket.arrived_at >= self.patience_seconds:
            return True
        return now > ticket.deadline and (self.is_overloaded or self.waiting > self.min_queue)

    def _set_timer(self, now: float) -> None:
        """Dispatch again when the first of those that wait loses patience, or the first slot is held too long."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends = [queue[0].arrived_at + self.patience_seconds for queue in self._waiting.values() if queue]
        if ends:
            ends += [ticket.started_at + MAX_SLOT_SECONDS for ticket in self._active]
            self._timer = asyncio.get_running_loop().call_later(max(0.0, min(ends) - now), self._dispatch)

    def _withdraw(self, ticket: Ticket) -> None:
        """Forget a request whose waiting was refused or cancelled."""
        if ticket in self._waiting[ticket.work]:
            self._waiting[ticket.work].remove(ticket)
        self.leave(ticket)


def _refuse(ticket: Ticket) -> None:
    REQUESTS.labels(ticket.work, "refused").inc()
    if not ticket.granted.done():
        ticket.granted.set_exception(Busy("no slot was free in time; try again shortly"))
