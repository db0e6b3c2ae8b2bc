"""Processes that share a folder of results, and leave each other's work alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path


@contextmanager
def alone(path: Path, wait: bool = True) -> Iterator[bool]:
    """Holds the lock of this file, which is made where it is not there; it is freed with the process at the latest.

    Yields whether it is held: without waiting, False where another holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        held = True
        try:
            flock(file, LOCK_EX if wait else LOCK_EX | LOCK_NB)
        except BlockingIOError:
            held = False
        yield held
