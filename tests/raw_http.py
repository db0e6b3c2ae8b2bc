"""Speak HTTP over a raw socket, in ways that no client library allows."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import NamedTuple

RECEIVED_BYTES = 65_536


def find_free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RawAnswer(NamedTuple):
    """What came back on a connection until the server closed it, or nothing more came. sent: bytes until then"""

    status: int
    headers: dict[str, str]
    body: bytes
    sent: int
    is_closed: bool


@contextmanager
def connect(port: int, source: str = "127.0.0.1", timeout: float = 10) -> Iterator[socket.socket]:
    """Open a connection to this machine. source: the client's address"""
    with socket.create_connection(("127.0.0.1", port), timeout, source_address=(source, 0)) as connection:
        yield connection


def send_until_answered(connection: socket.socket, start: bytes, block: bytes, count: int) -> RawAnswer:
    """Send `start` and then `block` up to `count` times, until the server answers; and return the answer."""
    sent = 0
    connection.setblocking(False)
    pending = memoryview(start)
    deadline = time.monotonic() + 60
    answer, is_closed = b"", False
    while count >= 0 and not answer and not is_closed and time.monotonic() < deadline:
        try:
            written = connection.send(pending)
            sent, pending = sent + written, pending[written:]
            if not pending:
                pending, count = memoryview(block), count - 1
        except BlockingIOError:
            time.sleep(0.001)
        except ConnectionError:
            is_closed = True
        try:
            answer = connection.recv(RECEIVED_BYTES)
            is_closed = is_closed or not answer
        except BlockingIOError:
            pass
        except ConnectionError:
            is_closed = True
    return read_answer(connection, answer, sent)


def read_answer(connection: socket.socket, received: bytes = b"", sent: int = 0, timeout: float = 10) -> RawAnswer:
    """Read until the server closes the connection, or sends nothing for `timeout` seconds. Status 0: no answer"""
    connection.settimeout(timeout)
    is_closed, whole = False, bytearray(received)
    try:
        while part := connection.recv(RECEIVED_BYTES):
            whole += part
        is_closed = True
    except TimeoutError:
        pass
    except ConnectionError:
        is_closed = True
    head, _, body = bytes(whole).partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return RawAnswer(int(first.split(" ")[1]) if first else 0, headers, body, sent, is_closed)


def read_one_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Read one answer, and nothing after it. Returns its status and its body."""
    answer = HTTPResponse(connection)
    answer.begin()
    return answer.status, answer.read()
