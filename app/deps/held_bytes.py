"""Limit the bytes of photos, and of long bodies, that the requests of a process hold in memory at once."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from starlette.types import Scope

from app.deps.server.connections import MIN_SLOW_SECONDS
from app.errors import Busy

MAX_HELD_BYTES = 128 * 2**20
"""Of all requests together: six photos of the largest size, and hundreds of ordinary ones. So for long bodies."""
MAX_FORM_BYTES = 2**30
"""Of all requests with photos that are being received. The files of their forms are on the disk meanwhile."""
FREE_BODY_BYTES = 65_536
"""Of each body, which are not counted, so that short requests go on whatever others send."""
EXTENSION = "likeness.sender"


class Sender(Protocol):
    """The connection by which a body arrives."""

    @property
    def is_sending(self) -> bool:
        """Whether the body has not arrived whole. The request may wait for its turn then, or be carried out."""

    @property
    def slow_since(self) -> float | None:
        """Since when its client has sent little, by the event loop's clock; None if it has not."""

    def refuse(self, error: Busy) -> None:
        """Answer with this error and close the connection."""


class HeldBytes:
    """Counts the bytes that requests hold. It is used on the event loop only, so it needs no lock.

    Bodies that arrive slowly keep nobody out: while all bytes are held, a body takes those of the one that has arrived
    slowly for longest, or else of a key that holds more than its own; but not within `MIN_SLOW_SECONDS`.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0
        self.arriving: set[HeldShare] = set()

    @contextmanager
    def open_share(self) -> Iterator["HeldShare"]:
        """Open the share of a request, which ends with the block."""
        share = HeldShare(self)
        try:
            yield share
        finally:
            share.end()

    def find_victim(self, newcomer: "HeldShare", count: int) -> "HeldShare | None":
        """Find the body that loses its bytes to another one, which wants so many more; None if there is none."""
        latest = asyncio.get_running_loop().time() - MIN_SLOW_SECONDS
        others = [share for share in self.arriving if share is not newcomer and share.count and share.is_sending]
        slow = [(since, share) for share in others if (since := share.slow_since) is not None and since <= latest]
        if slow:
            return min(slow, key=lambda one: one[0])[1]
        held: dict[str, int] = {}
        for share in self.arriving:
            held[share.key] = held.get(share.key, 0) + share.count
        fair = held.get(newcomer.key, newcomer.count) + count
        greedy = [share for share in others if held[share.key] > fair and share.began_at <= latest]
        return max(greedy, key=lambda share: (held[share.key], share.count), default=None)


class HeldShare:
    """The bytes that one request holds."""

    def __init__(self, held: HeldBytes) -> None:
        self.held, self.count = held, 0
        self.key, self.began_at = "", 0.0
        self._sender: Sender | None = None
        self._refusal: Busy | None = None

    def begin(self, scope: Scope) -> None:
        """Note that the body of this request begins to arrive: from now on, it may lose its bytes to another."""
        self._sender = scope.get("extensions", {}).get(EXTENSION, {}).get("sender")
        if self._sender is not None:
            self.key = scope["state"]["caller"].key_id if "caller" in scope["state"] else ""
            self.began_at = asyncio.get_running_loop().time()
            self.held.arriving.add(self)

    def complete(self) -> None:
        """Note that the whole body was read. Raises Busy if another has taken its bytes."""
        self.held.arriving.discard(self)
        if self._refusal is not None:
            raise self._refusal

    def end(self) -> None:
        """Hold nothing any more."""
        self.held.arriving.discard(self)
        self.held.count -= self.count
        self.count = 0

    @property
    def is_sending(self) -> bool:
        """See `Sender.is_sending`."""
        return self._sender is not None and self._sender.is_sending

    @property
    def slow_since(self) -> float | None:
        """See `Sender.slow_since`."""
        return self._sender.slow_since if self._sender is not None else None

    def add(self, count: int) -> None:
        """Hold more bytes. Raises Busy if all requests together hold too many, or another has taken these."""
        if self._refusal is not None:
            raise self._refusal
        while self.held.count + count > self.held.limit:
            victim = self.held.find_victim(self, count) if self.held.arriving else None
            if victim is None:
                raise Busy("requests that are being read hold too many bytes; try again shortly")
            victim.give_way()
        self.held.count += count
        self.count += count

    def give_way(self) -> None:
        """Lose the bytes to another, and refuse the request."""
        self.end()
        self._refusal = Busy("this body took long, and others wait for the memory that it held; try again shortly")
        if self._sender is not None:
            self._sender.refuse(self._refusal)


PHOTO_BYTES = HeldBytes(MAX_HELD_BYTES)
BODY_BYTES = HeldBytes(MAX_HELD_BYTES)
FORM_BYTES = HeldBytes(MAX_FORM_BYTES)
