"""Limit the bytes of photos, and of long bodies, that the requests of a process hold in memory at once."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import Busy

MAX_HELD_BYTES = 128 * 2**20
"""Of all requests together: six photos of the largest size, and hundreds of ordinary ones. So for long bodies."""
MAX_FORM_BYTES = 2**30
"""Of all requests with photos that are being received. The files of their forms are on the disk meanwhile."""
FREE_BODY_BYTES = 65_536
"""Of each body, which are not counted, so that short requests go on whatever others send."""


class HeldBytes:
    """Counts the bytes that requests hold. It is used on the event loop only, so it needs no lock."""

    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0

    @contextmanager
    def open_share(self) -> Iterator["HeldShare"]:
        """Open the share of a request, which ends with the block."""
        share = HeldShare(self)
        try:
            yield share
        finally:
            self.count -= share.count


class HeldShare:
    """The bytes that one request holds."""

    def __init__(self, held: HeldBytes) -> None:
        self.held, self.count = held, 0

    def add(self, count: int) -> None:
        """Hold more bytes. Raises Busy if all requests together hold too many."""
        if self.held.count + count > self.held.limit:
            raise Busy("requests that are being read hold too many bytes; try again shortly")
        self.held.count += count
        self.count += count


PHOTO_BYTES = HeldBytes(MAX_HELD_BYTES)
BODY_BYTES = HeldBytes(MAX_HELD_BYTES)
FORM_BYTES = HeldBytes(MAX_FORM_BYTES)
