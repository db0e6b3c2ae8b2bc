"""Limit the requests that run at once, share the slots out between clients, and refuse what would wait too long.

Used on the event loop only, so it needs no lock.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

from app.deps.admission.clients import RECENT_SECONDS, Client, ClientTable, Ticket
from app.deps.admission.work import REQUESTS, WAIT_SECONDS, Work
from app.errors import Busy

WAIT_FACTOR = 1.0
"""A request may wait for this many times the seconds that its class takes, and is then answered in twice its time."""
FIRST_ESTIMATE_SECONDS = {Work.SEARCH: 0.005, Work.PHOTO: 0.03, Work.WRITE: 0.02, Work.READ: 0.01}
ESTIMATE_WEIGHT = 0.05
"""The weight of the latest request in the estimate of its class."""
MAX_SLOT_SECONDS = 0.5
"""A request that runs for longer waits for something else than a core, such as a lock: its slot is passed on."""
MAX_RUNNING_REQUESTS = 32
"""In all, with those whose slots were passed on. Fewer than the request threads, so that probes are answered."""
MAX_RUNNING_OF_CLIENT = 24
"""So that one client whose requests wait for a lock leaves room for others."""
PROMPT_REFUSALS = 256
"""So many refusals a second of a client are answered at once. Beyond, refusals wait, so that it repeats them later."""
MAX_REFUSAL_SECONDS = 1.0


class AdmissionGate:
    """The slots of an API process.

    The next slot goes to the client with the fewest requests that run and, of those, to the one that has held slots for
    the shortest time lately. Of its requests the one with the nearest deadline is served first: WAIT_FACTOR times the
    seconds that its class has taken lately, so a slow machine waits for longer.

    Clients that wait for their answers have few requests beyond those that were answered. A client that has had more
    than its fair share of `min_queue` of them lately is overloaded: its requests are refused that would miss their
    deadline.

    slots: requests that run at once; those of overloaded clients leave one free, for refusals and for other clients
    min_queue: requests that may wait whatever their deadlines, so that a client with a few connections is not refused
    patience_seconds: how long any request waits at most
    """

    def __init__(
        self, slots: int, min_queue: int, patience_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.slots, self.min_queue, self.patience_seconds, self._clock = slots, min_queue, patience_seconds, clock
        self.estimates = dict(FIRST_ESTIMATE_SECONDS)
        self.clients = ClientTable(min_queue)
        self._active: set[Ticket] = set()
        self._overdue: set[Ticket] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._counters: dict[Work, tuple[Callable[[float], None], Callable[[float], None]]] = {}

    @property
    def is_overloaded(self) -> bool:
        """Whether, lately, more than `min_queue` requests have come beyond those that were answered.

        Clients that each send one request after another never bring this about, if there are at most `min_queue`.
        """
        return self.clients.have_excess(self._clock())

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a slot."""
        return self.clients.waiting_requests

    def check(self, work: Work, name: str = "") -> None:
        """Raises Busy if a request of a client that came now would be refused. name: what the client is known by"""
        now = self._clock()
        client = self.clients.find(name, now)
        self.clients.limit_overload(client, now)
        if self._would_be_late(client, work) and self._find_heavier(client) is None:
            self._refuse_newcomer(client, work)

    def predict_wait(self, work: Work, name: str = "") -> float:
        """Return the seconds that a request which came now would wait for a slot."""
        return self._predict_wait(self.clients.find(name, self._clock()), work)

    async def enter(self, work: Work, name: str = "") -> Ticket:
        """Wait for a slot. Raises Busy if it would come too late, or does."""
        now = self._clock()
        client = self.clients.find(name, now)
        self._make_room(client, work)
        self.clients.count_excess(client, 1.0, now)
        ticket = Ticket(client, work, now, now + self._budget(work))
        self.clients.add_waiting(ticket)
        self._dispatch()
        try:
            await ticket.granted
        except BaseException:
            self.clients.remove_waiting(ticket)
            self.leave(ticket)
            raise
        self._count_admitted(work, ticket.started_at - ticket.arrived_at)
        return ticket

    def has_free_slot(self, name: str = "") -> bool:
        """Whether a request of a client that came now would neither wait nor be refused."""
        if len(self._active) >= self.slots or len(self._active) + len(self._overdue) >= MAX_RUNNING_REQUESTS:
            return False
        now = self._clock()
        client = self.clients.find(name, now)
        return client not in self.clients.waiting and not self.clients.is_overloaded(client, now)

    def count_at_once(self, work: Work, seconds: float, name: str = "", count: int = 1) -> None:
        """Count requests that found a free slot, held it for these seconds each, and let nothing else run meanwhile."""
        now = self._clock()
        self.clients.find(name, now).used.add(count * seconds, now)
        for _ in range(count):
            self._estimate(work, seconds)
        self._count_admitted(work, 0.0, count)

    def leave(self, ticket: Ticket) -> None:
        """Give the slot back. A second call does nothing."""
        if ticket not in self._active and ticket not in self._overdue:
            return
        now, client = self._clock(), ticket.client
        seconds = now - ticket.started_at
        self._estimate(ticket.work, seconds)
        self._active.discard(ticket)
        self._overdue.discard(ticket)
        client.running -= 1
        client.used.add(min(seconds, MAX_SLOT_SECONDS), now)
        self.clients.count_excess(client, -1.0, now)
        self._dispatch()

    def find_refusal_delay(self, name: str = "") -> float:
        """Return for how many seconds a refusal of a client is to be kept back.

        A refusal costs processor time too: a client that repeats refused requests at once would take it from others.
        """
        now = self._clock()
        rate = self.clients.find(name, now).excess.read(now) / RECENT_SECONDS
        return min(MAX_REFUSAL_SECONDS, max(0.0, rate / PROMPT_REFUSALS - 1.0))

    def _make_room(self, client: Client, work: Work) -> None:
        """Raises Busy if a request would come too late, and no client with more requests can give its place up."""
        self.clients.limit_overload(client, self._clock())
        if not self._would_be_late(client, work):
            return
        heavier = self._find_heavier(client)
        if heavier is None:
            self._refuse_newcomer(client, work)
        else:
            self._refuse_waiting(heavier.newest_ticket)

    def _would_be_late(self, client: Client, work: Work) -> bool:
        is_crowded = self.waiting >= self.min_queue or self.clients.is_overloaded(client, self._clock())
        return is_crowded and self._predict_wait(client, work) > self._budget(work)

    def _find_heavier(self, client: Client) -> Client | None:
        """Return the client that has most requests, if a request of this one may take the place of one of its."""
        if not self.clients.waiting or self.clients.is_overloaded(client, self._clock()):
            return None
        heaviest = max(self.clients.waiting, key=lambda other: other.pending)
        return heaviest if heaviest.pending > client.pending + 1 else None

    def _predict_wait(self, client: Client, work: Work) -> float:
        now = self._clock()
        open_slots = self._count_open_slots(client, now)
        if len(self._active) < open_slots:
            return 0.0
        deadline, rank = now + self._budget(work), client.rank(now)
        running = sum(max(0.0, self.estimates[t.work] - (now - t.started_at)) for t in self._active)
        ahead = [ticket for ticket in client.list_waiting() if ticket.deadline <= deadline]
        turns = len(ahead)
        for other in self.clients.waiting:
            if other is not client:
                ahead += other.list_waiting()[: turns + (other.rank(now) <= rank)]
        return (running + sum(self.estimates[ticket.work] for ticket in ahead)) / open_slots

    def _count_open_slots(self, client: Client, now: float) -> int:
        return max(1, self.slots - 1) if self.clients.is_overloaded(client, now) else self.slots

    def _estimate(self, work: Work, seconds: float) -> None:
        self.estimates[work] += ESTIMATE_WEIGHT * (min(seconds, MAX_SLOT_SECONDS) - self.estimates[work])

    def _count_admitted(self, work: Work, waited_seconds: float, requests: int = 1) -> None:
        if work not in self._counters:  # to look labels up takes longer than to count
            self._counters[work] = REQUESTS.labels(work, "admitted").inc, WAIT_SECONDS.labels(work).observe
        count, observe = self._counters[work]
        count(requests)
        for _ in range(requests):
            observe(waited_seconds)

    def _budget(self, work: Work) -> float:
        return WAIT_FACTOR * self.estimates[work]

    def _dispatch(self) -> None:
        """Refuse who has waited too long, pass on slots that are held too long, and grant what is free."""
        now = self._clock()
        self._refuse_late(now)
        overdue = {t for t in self._active if now - t.started_at >= MAX_SLOT_SECONDS}
        self._active -= overdue
        self._overdue |= overdue
        while (ticket := self._choose_next(now)) is not None:
            self.clients.remove_waiting(ticket)
            if ticket.granted.done():  # the client has gone
                continue
            ticket.started_at = now
            ticket.client.running += 1
            self._active.add(ticket)
            ticket.granted.set_result(None)
        self._set_timer(now)

    def _choose_next(self, now: float) -> Ticket | None:
        """Return the request that gets the next slot, None if none is free for those that wait."""
        if len(self._active) + len(self._overdue) >= MAX_RUNNING_REQUESTS:
            return None
        clients = [
            client
            for client in self.clients.waiting
            if client.running < MAX_RUNNING_OF_CLIENT and len(self._active) < self._count_open_slots(client, now)
        ]
        tickets = (client.next_ticket for client in clients)
        return min(tickets, key=lambda ticket: (*ticket.client.rank(now), ticket.deadline), default=None)

    def _refuse_late(self, now: float) -> None:
        for client in tuple(self.clients.waiting):
            is_overloaded = self.clients.is_overloaded(client, now)
            for ticket in client.list_waiting():
                is_late = now > ticket.deadline and (is_overloaded or self._has_too_many(client))
                if is_late or now - ticket.arrived_at >= self.patience_seconds:
                    self._refuse_waiting(ticket)

    def _has_too_many(self, client: Client) -> bool:
        """Whether too many requests wait, and the client has more than its share of them."""
        return self.waiting > self.min_queue and client.waiting * len(self.clients.waiting) > self.min_queue

    def _set_timer(self, now: float) -> None:
        """Dispatch again when the first of those that wait loses patience, or the first slot is held too long."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.waiting:
            oldest = (ticket for client in self.clients.waiting for ticket in client.list_oldest())
            ends = [ticket.arrived_at + self.patience_seconds for ticket in oldest]
            ends += [ticket.started_at + MAX_SLOT_SECONDS for ticket in self._active]
            self._timer = asyncio.get_running_loop().call_later(max(0.0, min(ends) - now), self._dispatch)

    def _refuse_newcomer(self, client: Client, work: Work) -> NoReturn:
        self.clients.count_excess(client, 1.0, self._clock())
        REQUESTS.labels(work, "refused").inc()
        raise Busy("more requests arrive than can be answered in time; try again shortly")

    def _refuse_waiting(self, ticket: Ticket) -> None:
        self.clients.remove_waiting(ticket)
        REQUESTS.labels(ticket.work, "refused").inc()
        if not ticket.granted.done():
            ticket.granted.set_exception(Busy("no slot was free in time; try again shortly"))
