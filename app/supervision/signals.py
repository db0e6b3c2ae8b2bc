"""Receive signals in a loop that waits for files, instead of in handlers that interrupt it."""

import os
import select
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

WAKE_BYTES = 4_096


class SignalQueue:
    """The signals that were received and not taken yet."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._waker, self._wakes = socket.socketpair()
        for end in (self._waker, self._wakes):
            end.setblocking(False)

    @contextmanager
    def receive(self, numbers: Sequence[signal.Signals]) -> Iterator[None]:
        """Receive these signals during the block, except those that the process was started to ignore."""
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        previous = {number: signal.getsignal(number) for number in numbers}
        handled = [number for number, handler in previous.items() if handler != signal.SIG_IGN]
        for number in handled:
            signal.signal(number, lambda received, _: self._received.append(received))
        try:
            yield
        finally:
            for number in handled:
                signal.signal(number, previous[number])
            signal.set_wakeup_fd(-1)

    def wait(self, readers: Sequence[int], seconds: float | None) -> list[int]:
        """Wait for a signal, or for one of the files, and return the files that can be read."""
        wakes = self._wakes.fileno()
        readable, _, _ = select.select([wakes, *readers], [], [], seconds)
        if wakes in readable:
            os.read(wakes, WAKE_BYTES)
        return [reader for reader in readable if reader != wakes]

    def take(self) -> list[int]:
        """Return what was received since the last call."""
        received, self._received = self._received, []
        return received
