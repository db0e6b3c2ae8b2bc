"""Import large modules when a process starts."""

from importlib import import_module
from types import ModuleType

from app.garbage import garbage_collection_off


def import_uncollected(name: str) -> ModuleType:
    """Import a module while garbage collection is off.

    What modules define stays, so a collection finds nothing in it and takes a sixth of the time of the import.
    """
    with garbage_collection_off():
        return import_module(name)
