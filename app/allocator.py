"""Have the C library keep little memory that is free.

The GNU C library maps large blocks separately, so that a freed block returns to the system. But each freed block raises
the threshold of "large", to 32 MB at most; from then on the blocks of photos come from heaps, which keep them. Setting
the threshold turns that growth off.

It makes a heap for each thread, up to eight for each core, and each keeps what its threads have freed. Request threads
come to all of them in time, so a process grows for hours under steady traffic. Two heaps do not grow, and are enough:
most threads wait for the interpreter anyway. See mallopt(3) and malloc_trim(3).

Python interns every part of every path (pathlib). Once as many strings were interned as its table has places, also if
none of them is left, it makes a table of twice the size, which happens once: after some 2,000 erasures.
"""

import ctypes
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger("likeness.memory")

MMAP_THRESHOLD, TRIM_THRESHOLD, ARENA_MAX = -3, -1, -8  # M_MMAP_THRESHOLD, ... of malloc.h
MAX_HEAPS = 2
LARGE_BLOCK_BYTES = 15 * 2**20
"""Blocks from this size on return to the system; they include those of 16 MiB in which Pillow holds large photos."""
TRIM_SECONDS = 60.0
MIN_WORK_SECONDS = 1.0
"""Of processor time: a process that only looks for work takes less in TRIM_SECONDS."""
MAX_FREE_HEAP_BYTES = 64 * 2**20
"""A heap gives back what is free at its end beyond this. With less, a detector claims its memory anew each time."""
INTERNED_STRINGS = 100_000
"""More than Python's table has places for, once it holds the 60,000 or so of all modules."""


def tune_allocator() -> bool:
    """Set the thresholds and the number of heaps for this process. Returns False if the C library has no such settings.

    Heaps that threads have made before stay. The table of interned strings is enlarged now, by 1.8 MiB: growth that
    comes later would look like a leak. That takes 20 ms.
    """
    for number in range(INTERNED_STRINGS):
        sys.intern(f"likeness {number}")
    mallopt = _find_function("mallopt")
    if mallopt is None:
        return False
    options = {MMAP_THRESHOLD: LARGE_BLOCK_BYTES, TRIM_THRESHOLD: MAX_FREE_HEAP_BYTES, ARENA_MAX: MAX_HEAPS}
    return all(mallopt(option, value) for option, value in options.items())


def trim_heaps() -> None:
    """Return the free memory of all heaps to the system, where the C library can."""
    malloc_trim = _find_function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


class HeapTrimmer:
    """Trims the heaps of a process that has worked, at most every TRIM_SECONDS.

    What requests and jobs free lies between what stays, so that they come to ever more pages of the heaps. Without
    this, a process grows for hours, until it has all of them in memory.
    """

    def __init__(self, trim: Callable[[], None] = trim_heaps) -> None:
        self._trim = trim
        self._trimmed_at, self._worked_until = time.monotonic(), time.process_time()

    def trim_if_due(self) -> None:
        """Trim the heaps if the process has worked since the last time, and TRIM_SECONDS have passed. Takes 5 ms."""
        if time.monotonic() - self._trimmed_at < TRIM_SECONDS:
            return
        if time.process_time() - self._worked_until >= MIN_WORK_SECONDS:
            self._trim()
            self._worked_until = time.process_time()
        self._trimmed_at = time.monotonic()


def _find_function(name: str) -> Any:
    """Return a function of the C library; None if it has none of this name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError) as error:
        log.info("memory.not_tuned error=%s", error)
        return None
