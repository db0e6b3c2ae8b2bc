"""Import large modules when a process starts, and keep Python from looking for garbage among what stays."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

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


def import_uncollected(name: str) -> ModuleType:
    """Import a module while garbage collection is off.

    What modules define stays, so a collection finds nothing in it and takes a sixth of the time of the import.
    """
    with garbage_collection_off():
        return import_module(name)


def collect_rarely() -> None:
    """Collect after NEW_OBJECTS, and never look through what is there now, which stays.

    That would stop all requests for 0.1 s.
    """
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
