"""When Python looks for objects that refer to each other and that nothing else uses."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 10_000
"""So many more objects than before have Python look. Searches that are answered together hold thousands at a time: with
Python's own 700, it looked through them again and again, for a twelfth of their processor time."""


@contextmanager
def garbage_collection_off() -> Iterator[None]:
    """Collect no garbage in the block, where everything that is made stays."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect_rarely() -> None:
    """Collect after NEW_OBJECTS, and never look through what is there now, which stays.

    That would stop all requests for 0.1 s.
    """
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
