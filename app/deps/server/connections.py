"""Count the open connections of a server, in all and by address, and look at each once a second."""

import asyncio
from collections import Counter
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from operator import itemgetter
from typing import Protocol

SWEEP_SECONDS = 1.0
MAX_CACHED_ADDRESSES = 4096
NAT64_NETWORK = ip_network("64:ff9b::/96")
"""The prefix by which gateways translate IPv4 addresses (RFC 6052)."""
MAX_UNSENT_BYTES = 128 * 2**20
"""Of the answers that clients have not read yet: six photos of the largest size, and thousands of ordinary answers."""
REFUSED_SHARE = 4
"""One refused connection for so many accepted ones may stay open until its client has read why."""
IPV6_SITE_BITS = 64
MIN_SLOW_SECONDS = 2.0
"""A client that was slower than `MIN_CROWDED_RATE` for so long gives up its place to another address, and the memory
that its body holds to another body."""


class Connection(Protocol):
    """A connection as the register sees it."""

    @property
    def stalled_since(self) -> float:
        """When the client last read some of its answer, by the event loop's clock."""

    @property
    def waiting_since(self) -> float | None:
        """Since when it has waited for a request, or for the rest of its headers; None if it does not."""

    @property
    def slow_since(self) -> float | None:
        """Since when its client has sent little of a body, or read little of an answer; None if neither is awaited."""

    def check_progress(self, now: float) -> None:
        """Close the connection if its client is too slow. now: as the event loop's clock has it"""

    def abort(self) -> None:
        """Close the connection at once."""


class ConnectionRegister:
    """The open connections of one server.

    max_connections: in all
    max_per_address: of one client address; an IPv6 client is counted by its /64 network, which is one site
    """

    def __init__(self, max_connections: int, max_per_address: int) -> None:
        self.max_connections, self.max_per_address = max_connections, max_per_address
        self.open: dict[Connection, str] = {}
        self.counts: Counter[str] = Counter()
        self.unsent: dict[Connection, int] = {}
        self.unsent_bytes = 0
        self._sweep_timer: asyncio.TimerHandle | None = None

    def add(self, connection: Connection, host: str) -> str:
        """Add a connection. Returns why it must be refused, or an empty text. host: the address of its client

        While all are open, it takes the place of one that waits for a request or for a slow client: whoever holds
        connections without using them, even from several addresses, keeps nobody out.
        """
        address = group_address(host)
        self.open[connection] = address
        self.counts[address] += 1
        if self._sweep_timer is None:
            self._schedule_sweep()
        if self.counts[address] > self.max_per_address:
            return f"{self.max_per_address:,} connections are open from this address"
        if len(self.open) > self.max_connections and not self._close_waiting(connection):
            return f"the service has {self.max_connections:,} connections open"
        return ""

    def _close_waiting(self, newest: Connection) -> bool:
        """Close the connection that waits longest for a request, of the address with most, but not the newest.

        If none of that address does, and the newest is of another one, close its connection whose client is slow for
        longest. Clients of one address do not take each other's places so: the slow ones would be new all the time.
        Returns False if none is closed.
        """
        [(largest, _)] = self.counts.most_common(1)
        others = [one for one, address in self.open.items() if address == largest and one is not newest]
        waiting = [(since, one) for one in others if (since := one.waiting_since) is not None]
        if not waiting and self.open[newest] != largest:
            slow_since = asyncio.get_running_loop().time() - MIN_SLOW_SECONDS
            waiting = [(since, one) for one in others if (since := one.slow_since) is not None and since <= slow_since]
        if not waiting:
            return False
        _, longest = min(waiting, key=itemgetter(0))
        self.remove(longest)
        longest.abort()
        return True

    @property
    def is_crowded(self) -> bool:
        """Whether so many connections are open that refused ones must close at once."""
        return len(self.open) > self.max_connections + self.max_connections // REFUSED_SHARE

    def is_half_full(self, connection: Connection) -> bool:
        """Return whether half of all connections are open, or half of those of this one's address."""
        of_address = self.counts[self.open.get(connection, "")]
        return 2 * len(self.open) > self.max_connections or 2 * of_address > self.max_per_address

    def remove(self, connection: Connection) -> None:
        """Remove a connection. One that is not there is ignored."""
        self._note_unsent(connection, 0)
        address = self.open.pop(connection, None)
        if address is not None:
            self.counts[address] -= 1
            if not self.counts[address]:
                del self.counts[address]

    def count_unsent(self, connection: Connection, count: int) -> None:
        """Note how many bytes of an answer wait for its client.

        While all of them are too many, the connection is closed whose client has read nothing for the longest time.
        """
        self._note_unsent(connection, count)
        while self.unsent_bytes > MAX_UNSENT_BYTES and len(self.unsent) > 1:
            slowest = min(self.unsent, key=lambda waiting: (waiting.stalled_since, -self.unsent[waiting]))
            self._note_unsent(slowest, 0)
            slowest.abort()

    def _note_unsent(self, connection: Connection, count: int) -> None:
        self.unsent_bytes += count - self.unsent.pop(connection, 0)
        if count:
            self.unsent[connection] = count

    def _schedule_sweep(self) -> None:
        self._sweep_timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Look at all connections. One timer for all costs a request nothing; its own would be set and cancelled."""
        self._sweep_timer = None
        now = asyncio.get_running_loop().time()
        for connection in list(self.open):
            connection.check_progress(now)
        if self.open:
            self._schedule_sweep()


@lru_cache(MAX_CACHED_ADDRESSES)
def parse_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address of a client; None for any other text, as a proxy may pass on what a client has written.

    One that a gateway has translated is the IPv4 address that it contains.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if address in NAT64_NETWORK:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(MAX_CACHED_ADDRESSES)
def format_address(host: str) -> str | None:
    """Return the address of a client as a text; None if it has none."""
    return str(parse_address(host) or "") or None


@lru_cache(MAX_CACHED_ADDRESSES)
def group_address(host: str) -> str:
    """Return what a client is counted by: its IPv4 address or IPv6 network; empty, for all together, if it has none."""
    address = parse_address(host)
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address), IPV6_SITE_BITS), strict=False))
    return str(address or "")
