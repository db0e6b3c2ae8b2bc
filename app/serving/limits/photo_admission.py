"""Limit the pixels of large photos that requests decode at once, so that the memory of the process is bounded."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from app.allocator import trim_heaps
from app.errors import Busy

LARGE_PHOTO_PIXELS = 16_000_000
"""Photos of up to this many pixels never wait here: the slots for inference bound how many are decoded at once."""
MAX_WAITING_PHOTOS = 4
"""Together with the requests that may wait for a slot, fewer than the request threads."""
MAX_WAIT_SECONDS = 0.25


class PhotoAdmission:
    """Admits large photos whose pixels add up to at most `max_pixels`. See `ml.images.read` for bytes per pixel."""

    def __init__(self, max_pixels: int) -> None:
        self.max_pixels = max_pixels
        self._changed = threading.Condition()
        self._pixels = self._waiting = 0

    @contextmanager
    def reserve(self, pixels: int) -> Iterator[None]:
        """Hold a photo's share of the pixels. A photo larger than all of them is admitted alone.

        Afterwards, the memory that a large photo has left in the heaps is returned to the system.

        Raises Busy if there is no room within MAX_WAIT_SECONDS, or too many photos wait already.
        """
        if pixels <= LARGE_PHOTO_PIXELS:
            yield
            return
        self._enter(pixels)
        try:
            yield
        finally:
            with self._changed:
                self._pixels -= pixels
                self._changed.notify_all()
            trim_heaps()

    def _enter(self, pixels: int) -> None:
        deadline = time.monotonic() + MAX_WAIT_SECONDS
        with self._changed:
            while self._pixels and self._pixels + pixels > self.max_pixels:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or self._waiting >= MAX_WAITING_PHOTOS:
                    raise Busy("other large photos are being decoded; try again shortly, or send a smaller photo")
                self._waiting += 1
                self._changed.wait(remaining)
                self._waiting -= 1
            self._pixels += pixels
