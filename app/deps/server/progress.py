"""Notice a client that sends or reads too slowly."""

import struct
from fcntl import ioctl
from socket import AF_INET, AF_INET6, IPPROTO_TCP, SO_LINGER, SOL_SOCKET, socket
from sys import platform
from termios import TIOCOUTQ
from typing import NamedTuple

MAX_STALL_SECONDS = 20.0
MIN_BYTES_PER_STALL = 4_096
"""A client must move so many bytes within MAX_STALL_SECONDS. 200 bytes a second are slower than any network in use."""
MAX_READ_SECONDS = 60.0
MIN_READ_RATE = 2**18
"""A client must have read an answer MAX_READ_SECONDS after it was whole or, if that is later, at so many bytes a
second: what is erased, or asked for with a key that is revoked, would else be sent on for hours."""
MAX_QUEUED_BYTES = 131_072
"""Of an answer that the system holds and has not sent. It sends them even when the connection is closed."""
TCP_INFO, TCP_INFO_BYTES, ACKNOWLEDGED_OFFSET = 11, 128, 120
"""Of Linux, where `tcpi_bytes_acked` has this offset in `struct tcp_info`."""
TCP_NOTSENT_LOWAT = 25
IS_LINUX = platform == "linux"
MIN_CROWDED_RATE = 16_384
"""Bytes a second that a client must move while others are kept out: a photo of 100 KB in six seconds."""


class Stall:
    """How long a count of moved bytes has not grown by MIN_BYTES_PER_STALL, and how fast it grows."""

    def __init__(self) -> None:
        self.restart(0, 0.0)

    def restart(self, count: int, now: float) -> None:
        """Begin anew. now: as the event loop's clock has it"""
        self.fast_count = self.count = count
        self.fast_until = self.began_at = now

    def is_over(self, count: int, now: float) -> bool:
        """Whether the client had MAX_STALL_SECONDS and did not move enough.

        count: of all bytes moved so far, or minus the bytes that are still to be moved, of which there may be more
        """
        self.count = min(count, self.count)
        self.find_slow_since(count, now)
        if count - self.count >= MIN_BYTES_PER_STALL:
            self.count, self.began_at = count, now
        return now - self.began_at > MAX_STALL_SECONDS

    def find_slow_since(self, count: int, now: float) -> float | None:
        """Return since when less than MIN_CROWDED_RATE was moved on average; None if it was more until now.

        What was moved before counts no longer: a client that begins fast is slow as soon as it goes on slowly.
        """
        if count - self.fast_count < MIN_CROWDED_RATE * (now - self.fast_until):
            return self.fast_until
        self.fast_count, self.fast_until = count, now
        return None


class ReadProgress(NamedTuple):
    """How far a client has read. Where the system does not tell, what it has taken over counts as read.

    read_bytes: that have arrived at the client, counted from any start; remaining_bytes: that have not
    """

    read_bytes: int
    remaining_bytes: int

    @classmethod
    def measure(cls, connection: socket, unsent_bytes: int) -> "ReadProgress":
        """Ask the system about an open connection. unsent_bytes: that it has not taken over yet"""
        info = connection.getsockopt(IPPROTO_TCP, TCP_INFO, TCP_INFO_BYTES) if _is_measured(connection) else b""
        if len(info) < TCP_INFO_BYTES:  # an old Linux, or a sandbox that stands in for one
            return cls(-unsent_bytes, unsent_bytes)
        [read_bytes] = struct.unpack_from("=Q", info, ACKNOWLEDGED_OFFSET)
        [queued_bytes] = struct.unpack("=i", ioctl(connection.fileno(), TIOCOUTQ, bytes(4)))
        return cls(read_bytes, queued_bytes + unsent_bytes)


class AnswerDeadline:
    """Until when a client must have read the whole answers that it was sent."""

    def __init__(self) -> None:
        self.has_new_answer = False
        self.end: int | None = None  # of an answer, as `ReadProgress` counts what is read
        self.ends_at = 0.0

    def is_over(self, connection: socket, unsent_bytes: int, now: float) -> bool:
        """Whether the client had its time and has not read the answer. Further ones have theirs from its end on."""
        if self.end is None and not self.has_new_answer:
            return False
        progress = ReadProgress.measure(connection, unsent_bytes)
        if self.end is not None and progress.read_bytes >= self.end:
            self.end = None
        if self.end is None and self.has_new_answer:
            self.has_new_answer = False
            if progress.remaining_bytes:
                self.end = sum(progress)
                self.ends_at = now + max(MAX_READ_SECONDS, progress.remaining_bytes / MIN_READ_RATE)
        return self.end is not None and now > self.ends_at


def limit_queued_bytes(connection: socket) -> None:
    """Let the system hold MAX_QUEUED_BYTES that it has not sent, where it knows such a limit."""
    if _is_measured(connection):
        connection.setsockopt(IPPROTO_TCP, TCP_NOTSENT_LOWAT, MAX_QUEUED_BYTES)


def discard_queued_bytes(connection: socket) -> None:
    """Have the system discard what it has not sent when the connection is closed, instead of sending it."""
    connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))


def _is_measured(connection: socket) -> bool:
    return IS_LINUX and connection.family in (AF_INET, AF_INET6)
