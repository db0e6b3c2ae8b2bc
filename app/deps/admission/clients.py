"""The clients of an API process: what each has waiting and running, and what it had lately."""

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field

from app.deps.admission.work import Work

RECENT_SECONDS = 0.5
"""How long it counts what a client sent and which slots it held."""
MAX_OVERLOAD_SECONDS = 30.0
"""Then the count starts again, so that a few connections that repeat refused requests at once do not keep it up."""
MAX_CLIENTS = 1024
"""Clients that are told apart. What more there are count as one."""
NEGLIGIBLE = 0.01
"""A count below this is forgotten with its client."""


@dataclass(eq=False)
class Ticket:
    """A request that waits for a slot or runs. Times are of the gate's clock."""

    client: "Client"
    work: Work
    arrived_at: float
    deadline: float
    started_at: float = 0.0
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class FadingCount:
    """A count, never below 0, of which all but 1/e fades within RECENT_SECONDS."""

    def __init__(self) -> None:
        self._count, self._counted_at = 0.0, 0.0

    def add(self, change: float, now: float) -> float:
        """Change the count, and return by how much it has changed."""
        before = self.read(now)
        self._count, self._counted_at = max(0.0, before + change), now
        return self._count - before

    def may_exceed(self, limit: float) -> bool:
        """Whether it was above the limit when it last changed; it only fades since."""
        return self._count > limit

    def read(self, now: float) -> float:
        return self._count * math.exp((self._counted_at - now) / RECENT_SECONDS) if self._count else 0.0


class Client:
    """Whose requests are counted together: those with one key.

    running: requests that have a slot, or had one that was passed on; excess: those that came lately beyond those that
    were answered; used: seconds for which it held slots lately
    overload_ends_at: when its excess starts again, infinite while it is not overloaded
    """

    def __init__(self) -> None:
        self.running = 0
        self.excess, self.used = FadingCount(), FadingCount()
        self.overload_ends_at = math.inf
        self._waiting: dict[Work, deque[Ticket]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def pending(self) -> int:
        """The number of its requests that run or wait."""
        return self.running + self.waiting

    @property
    def next_ticket(self) -> Ticket:
        """What has the nearest deadline of its requests that wait."""
        return min(self.list_oldest(), key=lambda ticket: ticket.deadline)

    @property
    def newest_ticket(self) -> Ticket:
        """What came last of its requests that wait."""
        return max((queue[-1] for queue in self._waiting.values()), key=lambda ticket: ticket.arrived_at)

    def list_waiting(self) -> list[Ticket]:
        return [ticket for queue in self._waiting.values() for ticket in queue]

    def list_oldest(self) -> list[Ticket]:
        """The oldest of each class that wait."""
        return [queue[0] for queue in self._waiting.values()]

    def append(self, ticket: Ticket) -> None:
        self._waiting.setdefault(ticket.work, deque()).append(ticket)

    def remove(self, ticket: Ticket) -> bool:
        """Remove a request that waits. Returns whether it was there."""
        queue = self._waiting.get(ticket.work)
        if queue is None or ticket not in queue:
            return False
        queue.remove(ticket)
        if not queue:
            del self._waiting[ticket.work]
        return True

    def rank(self, now: float) -> tuple[int, float]:
        """Return what the clients are ordered by that wait: the lowest is served first."""
        return self.running, self.used.read(now)

    def is_idle(self, now: float) -> bool:
        """Whether nothing is lost if it is forgotten."""
        return not self.pending and max(self.excess.read(now), self.used.read(now)) < NEGLIGIBLE


class ClientTable:
    """The clients that have requests, or had some lately.

    max_excess: of all clients together, before any of them is overloaded
    """

    def __init__(self, max_excess: float) -> None:
        self.max_excess, self.waiting_requests = max_excess, 0
        self.waiting: dict[Client, None] = {}  # a set that keeps its order
        self._excess = FadingCount()
        self._clients: dict[str, Client] = {}
        self._others = Client()
        self._swept_at = -math.inf

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, name: str, now: float) -> Client:
        """Return a client, which is new if it is not known, or that of all others if there are too many."""
        client = self._clients.get(name)
        if client is None:
            self._forget_idle(now)
            if len(self._clients) >= MAX_CLIENTS:
                return self._others
            client = self._clients[name] = Client()
        return client

    def add_waiting(self, ticket: Ticket) -> None:
        ticket.client.append(ticket)
        self.waiting[ticket.client] = None
        self.waiting_requests += 1

    def remove_waiting(self, ticket: Ticket) -> None:
        """Take a request out of the queue. One that does not wait is ignored."""
        if ticket.client.remove(ticket):
            self.waiting_requests -= 1
            if not ticket.client.waiting:
                del self.waiting[ticket.client]

    def count_excess(self, client: Client, change: float, now: float) -> None:
        """Count requests of a client that came (above 0) or were answered (below 0)."""
        self._excess.add(client.excess.add(change, now), now)

    def have_excess(self, now: float) -> bool:
        """Whether all clients together have had more than `max_excess` lately."""
        return self._excess.may_exceed(self.max_excess) and self._excess.read(now) > self.max_excess

    def is_overloaded(self, client: Client, now: float) -> bool:
        """Whether a client has had more than its fair share of `max_excess`: what one leaves goes to the others."""
        if not self.have_excess(now):
            return False
        excess = client.excess.read(now)
        if excess > self.max_excess or excess * (len(self._clients) + 1) <= self.max_excess:
            return excess > self.max_excess
        return excess > self._find_fair_share(now)

    def limit_overload(self, client: Client, now: float) -> None:
        """Have the excess of a client start again if it is overloaded for too long."""
        if not self.is_overloaded(client, now):
            client.overload_ends_at = math.inf
        elif now >= client.overload_ends_at:
            client.overload_ends_at = math.inf
            self.count_excess(client, -client.excess.read(now), now)
        else:
            client.overload_ends_at = min(client.overload_ends_at, now + MAX_OVERLOAD_SECONDS)

    def _find_fair_share(self, now: float) -> float:
        counts = sorted(client.excess.read(now) for client in (*self._clients.values(), self._others))
        left, share = self.max_excess, self.max_excess
        for position, count in enumerate(counts):
            share = left / (len(counts) - position)
            if count > share:
                break
            left -= count
        return share

    def _forget_idle(self, now: float) -> None:
        if now - self._swept_at >= RECENT_SECONDS:
            self._swept_at = now
            self._clients = {name: client for name, client in self._clients.items() if not client.is_idle(now)}
