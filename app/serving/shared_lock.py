"""A lock that many share or one holds."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedLock:
    """Searches share it; the one that changes an index holds it alone. Who waits to hold it is not overtaken."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = 0
        self._wanted = 0
        self._held = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            while self._held or self._wanted:
                self._changed.wait()
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                if not self._sharing:
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._wanted += 1
            while self._held or self._sharing:
                self._changed.wait()
            self._wanted -= 1
            self._held = True
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()
