"""The limits of single connections, on a server with a small application and short times."""

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from sse_starlette.sse import AppStatus
from starlette.types import Message, Receive, Scope, Send

from app.config import Settings
from app.deps.server import configuration, connections, draining, progress, protocol
from app.deps.server.configuration import configure_server
from app.deps.server.connections import ConnectionRegister, group_address
from app.deps.server.draining import DrainingServer
from app.deps.server.progress import MIN_BYTES_PER_STALL, AnswerDeadline, Stall
from app.deps.server.security_headers import SECURITY_HEADERS
from app.deps.server.unread_bodies import UnreadBodyMiddleware
from tests.raw_http import RawAnswer, connect, read_answer, read_one_answer

LIMIT_SECONDS = 0.4
MAX_SECONDS = 5.0
LARGE_BYTES = 20_000_000


class Application:
    """Answers `/` at once, `/large` with more than a socket takes, and `/whole` with the same in one message.

    When their bodies are complete it answers `/echo` with the length of the body, and `/headers` with the names of the
    headers. It answers `/late` after a while, and `/events` until the client goes.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.clients: list[str] = []
        self.disconnects = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])
        self.clients.append(scope["client"][0])
        body = b"x" * LARGE_BYTES if scope["path"] in ("/large", "/whole") else b"ok"
        if scope["path"] in ("/echo", "/headers"):
            message: Message = {"more_body": True}
            length = 0
            while message.get("more_body"):
                message = await receive()
                length += len(message.get("body", b""))
            self.disconnects += message["type"] == "http.disconnect"
            body = str(length).encode()
        if scope["path"] == "/events":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"event", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                continue
            self.disconnects += 1
            return
        if scope["path"] == "/late":
            await asyncio.sleep(LIMIT_SECONDS / 2)
        if scope["path"] == "/headers":
            body = b" ".join(name for name, _ in scope["headers"])
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["path"] == "/whole":
            await send({"type": "http.response.body", "body": body})
            return
        for start in range(0, len(body), 65_536):
            await send({"type": "http.response.body", "body": body[start : start + 65_536], "more_body": True})
        await send({"type": "http.response.body"})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A running server: its port, its application and the number of its open connections."""
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.05)
    for module, name in ((protocol, "MAX_HEADER_SECONDS"), (progress, "MAX_STALL_SECONDS")):
        monkeypatch.setattr(module, name, LIMIT_SECONDS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield from run_server(listener)


def run_server(listener: socket.socket, **options: Any) -> Iterator[SimpleNamespace]:
    """Run a server on a socket. options: of uvicorn.Config"""
    application = Application()
    application_with_limits = UnreadBodyMiddleware(application)
    options |= {"lifespan": "off", "timeout_keep_alive": 0}  # the latter is not used
    config = configure_server(application_with_limits, Settings(), **options)
    running = DrainingServer(config)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not running.started:
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    port = listener.getsockname()[1]
    register = config.http.keywords["register"]  # type: ignore[union-attr]
    yield SimpleNamespace(
        port=port,
        application=application,
        register=register,
        count=lambda: len(register.open),
        unsent=lambda: register.unsent_bytes,
        drain=lambda: running.drain(0, None),
        thread=thread,
    )
    running.should_exit = True
    thread.join(10)


def exchange(port: int, *parts: bytes, pause: float = 0.0) -> RawAnswer:
    with connect(port) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        return read_answer(connection, timeout=MAX_SECONDS)


def wait_until_closed(server: SimpleNamespace, remaining: int = 0) -> None:
    """Wait until at most so many connections are open."""
    deadline = time.monotonic() + 4 * MAX_SECONDS
    while server.count() > remaining:
        assert time.monotonic() < deadline, server.count()
        time.sleep(0.01)


def code(answer: RawAnswer) -> str:
    return str(json.loads(answer.body)["code"])


def test_headers_within_the_limits_are_answered(server: SimpleNamespace) -> None:
    headers = b"".join(b"X-%02d: %s\r\n" % (i, b"v" * 650) for i in range(95))
    answer = exchange(server.port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers + b"\r\n")
    assert (answer.status, answer.body) == (200, b"ok")


@pytest.mark.parametrize(
    "headers",
    [b"X-Long: " + b"v" * 65_536 + b"\r\n", b"".join(b"X-%d: v\r\n" % i for i in range(100))],
    ids=["bytes", "count"],
)
def test_complete_headers_beyond_a_limit_are_refused(server: SimpleNamespace, headers: bytes) -> None:
    answer = exchange(server.port, b"GET / HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
    assert (answer.status, code(answer), answer.is_closed) == (431, "HeadersTooLarge", True)
    assert {name.decode() for name, _ in SECURITY_HEADERS} <= set(answer.headers)
    assert server.application.paths == []


@pytest.mark.parametrize("target", [b"/" + b"a" * 4_096, b"http://x/" + b":" * 60_000])
def test_a_path_beyond_the_limit_is_refused(server: SimpleNamespace, target: bytes) -> None:
    answer = exchange(server.port, b"POST " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (answer.status, code(answer), answer.is_closed) == (431, "HeadersTooLarge", True)
    assert server.application.paths == []


def test_the_limit_of_the_path_is_not_of_the_query(server: SimpleNamespace) -> None:
    target = b"/" + b"a" * 4_095 + b"?" + b"q" * 50_000
    answer = exchange(server.port, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (answer.status, len(server.application.paths[0])) == (200, 4_096)


def test_trailers_are_no_headers(server: SimpleNamespace) -> None:
    start = b"POST /headers HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    for trailer in (b"", b"Authorization: Bearer secret\r\nX-Forwarded-For: 6.6.6.6\r\n"):
        answer = exchange(server.port, start + b"1\r\nb\r\n0\r\n" + trailer + b"\r\n")
        assert (answer.status, answer.body) == (200, b"host connection transfer-encoding")


@pytest.mark.parametrize("codings", [b"gzip, chunked", b"gzip", b"identity, chunked"])
def test_other_transfer_codings_are_refused(server: SimpleNamespace, codings: bytes) -> None:
    start = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " + codings + b"\r\n\r\n"
    answer = exchange(server.port, start + b"1\r\nb\r\n0\r\n\r\n")
    assert (answer.status, server.application.paths) == (400, [])


@pytest.mark.parametrize("version", [b"2.0", b"3.1", b"0.9", b"1.0"])
def test_only_http_1_is_spoken_and_only_1_1_with_chunks(server: SimpleNamespace, version: bytes) -> None:
    plain = b"POST /echo HTTP/" + version + b"\r\nHost: x\r\n"
    answer = exchange(server.port, plain + b"Transfer-Encoding: chunked\r\n\r\n1\r\nb\r\n0\r\n\r\n")
    assert (answer.status, code(answer), answer.is_closed) == (400, "InvalidRequest", True)
    answer = exchange(server.port, plain + b"Content-Length: 1\r\n\r\nb")
    assert answer.status == (200 if version == b"1.0" else 400)
    assert server.application.paths == ["/echo"] * (version == b"1.0")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_only_clients_of_http_1_1_are_told_to_continue(server: SimpleNamespace, version: bytes) -> None:
    head = b"POST /echo HTTP/" + version + b"\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n"
    answer = exchange(server.port, head + b"Content-Length: 1\r\n\r\n", b"b", pause=0.1)
    assert answer.status == (200 if version == b"1.0" else 100)


def test_a_request_after_a_large_body_has_a_limit_of_its_own(server: SimpleNamespace) -> None:
    body = b"b" * 200_000
    post = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + body
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = exchange(server.port, post + post[:100], post[100:] + last)
    assert answer.status == 200
    assert answer.body.count(b"200000") == 2
    assert answer.body.endswith(b"ok")


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([b""], 0),
        ([b"\r\n"], 0),
        ([b"G"], 408),
        ([b"GET / HTTP/1.1\r\n", *[b"X: v\r\n"] * 9], 408),
        ([b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"], 408),
        ([b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n", *[b"b"] * 9], 408),
        ([b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"1\r\nb\r\n"] * 9], 408),
    ],
    ids=["nothing", "an empty line", "one byte", "a header at a time", "no body", "a byte at a time", "chunks"],
)
def test_a_request_that_does_not_arrive_is_given_up(server: SimpleNamespace, parts: list[bytes], status: int) -> None:
    started = time.monotonic()
    answer = exchange(server.port, *parts, pause=0.1 if len(parts) > 1 else 0)
    assert (answer.status, answer.is_closed) == (status, True)
    assert LIMIT_SECONDS <= time.monotonic() - started < MAX_SECONDS - 1
    assert not status or code(answer) == "RequestTimeout"
    wait_until_closed(server)
    assert server.application.disconnects == server.application.paths.count("/echo"), "the application is told"


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_client_that_hangs_up_while_it_pipelines_is_no_failure(
    server: SimpleNamespace, caplog: pytest.LogCaptureFixture, reset: bool
) -> None:
    with connect(server.port) as connection:
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 8)
        connection.recv(1)
    wait_until_closed(server)
    assert exchange(server.port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").status == 200
    assert "Exception in ASGI application" not in caplog.text
    assert server.application.paths.count("/large") == 1, "nobody waits for the answers to the others"


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"]
)
def test_a_client_that_has_gone_before_it_is_accepted_is_not_read(family: socket.AddressFamily, host: str) -> None:
    with socket.create_server((host, 0), family=family) as listener:
        for _ in range(5):
            with socket.create_connection(listener.getsockname()[:2]) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(b"POST /gone HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok")
        for server in run_server(listener):
            with socket.create_connection(listener.getsockname()[:2]) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert read_answer(connection, timeout=MAX_SECONDS).status == 200
            assert server.application.paths == ["/"], "nothing is done for an address that is not known"
            wait_until_closed(server)


@pytest.mark.parametrize(
    ("requests", "body"),
    [
        (b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n", b"ok"),
        (b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", b"x" * LARGE_BYTES),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", b"3"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n" * 2, b"ok"),
    ],
    ids=["waits", "is large", "has a body", "are three"],
)
def test_requests_are_answered_though_the_client_sends_nothing_more(
    server: SimpleNamespace, requests: bytes, body: bytes
) -> None:
    with connect(server.port) as connection:
        connection.sendall(requests)
        connection.shutdown(socket.SHUT_WR)
        answer = read_answer(connection, timeout=MAX_SECONDS)
    assert (answer.status, answer.is_closed) == (200, True)
    assert answer.body.endswith(body)
    assert answer.body.count(b"200 OK") == requests.count(b"HTTP/1.1") - 1


def ask_until_answered(port: int) -> None:
    """Ask until the server has noticed whose clients it waits for."""
    deadline = time.monotonic() + MAX_SECONDS
    statuses = list[int | str]()
    while 200 not in statuses:
        assert time.monotonic() < deadline, statuses
        try:
            statuses.append(exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").status)
        except OSError as error:
            statuses.append(repr(error))
        time.sleep(0.1)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["nothing", "half of the headers", "half of a body", "nothing after an answer"],
)
def test_a_client_that_ends_without_a_whole_request_is_cut_off_at_once(
    server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(protocol, "MAX_HEADER_SECONDS", 60.0)
    monkeypatch.setattr(progress, "MAX_STALL_SECONDS", 60.0)
    with connect(server.port) as connection:
        connection.sendall(sent)
        time.sleep(LIMIT_SECONDS / 2)
        connection.shutdown(socket.SHUT_WR)
        assert read_answer(connection, timeout=MAX_SECONDS).is_closed


def test_a_stream_of_events_ends_with_its_client(server: SimpleNamespace) -> None:
    with connect(server.port) as connection:
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in connection.recv(1_000)
        connection.shutdown(socket.SHUT_WR)
        assert read_answer(connection, b"HTTP/1.1 200 OK\r\n\r\n", timeout=MAX_SECONDS).is_closed
    deadline = time.monotonic() + MAX_SECONDS
    while not server.application.disconnects and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.application.disconnects == 1


def test_a_client_that_ends_and_reads_nothing_is_cut_off(server: SimpleNamespace) -> None:
    with connect(server.port) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + MAX_SECONDS
        while not server.application.paths and time.monotonic() < deadline:
            time.sleep(0.01)
        wait_until_closed(server)


def test_a_slow_body_that_goes_on_is_read(server: SimpleNamespace) -> None:
    parts = [b"b" * MIN_BYTES_PER_STALL] * 8
    length = sum(map(len, parts))
    start = f"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n".encode()
    answer = exchange(server.port, start, *parts, pause=LIMIT_SECONDS / 3)
    assert (answer.status, answer.body) == (200, str(length).encode())


def test_a_client_that_does_not_read_its_answer_is_cut_off(server: SimpleNamespace) -> None:
    with connect(server.port) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        deadline = time.monotonic() + MAX_SECONDS
        while not server.count() and time.monotonic() < deadline:
            time.sleep(0.01)
        wait_until_closed(server)
        answer = read_answer(connection)
    assert answer.is_closed
    assert len(answer.body) < LARGE_BYTES


def test_a_client_that_reads_slowly_gets_its_whole_answer(server: SimpleNamespace) -> None:
    with connect(server.port) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        for _ in range(6):
            time.sleep(LIMIT_SECONDS / 2)
            received += b"".join(connection.recv(65_536) for _ in range(30))
        answer = read_answer(connection, received)
    assert (len(answer.body), answer.is_closed) == (LARGE_BYTES, True)


READ_SECONDS = 0.6


def read_slowly(connection: socket.socket, seconds: float, part_bytes: int = 20_000) -> int:
    """Read parts of an answer for some time, or until it ends. Returns how many bytes were read."""
    received, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            part = connection.recv(part_bytes)
        except ConnectionResetError:
            break
        if not part:
            break
        received += len(part)
        time.sleep(0.02)
    return received


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("ending", ["keep-alive", "close"])
def test_an_answer_that_is_not_read_in_time_is_cut_off(monkeypatch: pytest.MonkeyPatch, ending: str, loop: str) -> None:
    """A slow reader got a photo for hours after the face was erased and the key revoked."""
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(progress, "MAX_READ_SECONDS", READ_SECONDS)
    monkeypatch.setattr(progress, "MIN_READ_RATE", 2**40)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for server in run_server(listener, loop=loop):
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
                connection.connect(("127.0.0.1", server.port))
                connection.sendall(b"GET /whole HTTP/1.1\r\nHost: x\r\nConnection: %s\r\n\r\n" % ending.encode())
                started = time.monotonic()
                received = read_slowly(connection, MAX_SECONDS)
                assert READ_SECONDS < time.monotonic() - started < MAX_SECONDS - 1
                assert 0 < received < LARGE_BYTES / 4, "the rest was not sent"
            wait_until_closed(server)
            with connect(server.port) as connection:
                connection.sendall(b"GET /whole HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert len(read_answer(connection).body) == LARGE_BYTES, "who reads is answered"


def test_a_small_answer_that_is_not_read_in_time_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system had taken it over, and would have sent it at any time later."""
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(progress, "MAX_READ_SECONDS", READ_SECONDS)
    request = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
    monkeypatch.setattr("tests.app.test_connections.LARGE_BYTES", 60_000)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for server in run_server(listener):
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                connection.connect(("127.0.0.1", server.port))
                connection.sendall(request)
                time.sleep(READ_SECONDS / 4)
                assert server.count() == 1
                assert server.unsent() == 0
                wait_until_closed(server)
                assert read_slowly(connection, MAX_SECONDS) < 60_000


def test_a_client_that_reads_is_not_cut_off_whatever_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is on its way to it whenever the register looks, but each answer is read in time."""
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(progress, "MAX_READ_SECONDS", READ_SECONDS / 2)
    monkeypatch.setattr("tests.app.test_connections.LARGE_BYTES", 1_000_000)
    request = b"GET /whole HTTP/1.1\r\nHost: x\r\n\r\n"
    closing = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for server in run_server(listener):
            with connect(server.port) as connection:
                connection.sendall(request * 19 + closing)
                started, received = time.monotonic(), 0
                while part := connection.recv(100_000):
                    received += len(part)
                    time.sleep(0.01)
            assert time.monotonic() - started > 2 * READ_SECONDS
            assert received > 20 * 1_000_000


def test_the_answers_that_nobody_reads_are_limited_together(
    server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 3 * LARGE_BYTES
    monkeypatch.setattr(connections, "MAX_UNSENT_BYTES", limit)
    monkeypatch.setattr(progress, "MAX_STALL_SECONDS", 60.0)
    request = b"GET /whole HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with ExitStack() as clients:
        for count in range(1, 7):
            clients.enter_context(connect(server.port)).sendall(request)
            deadline = time.monotonic() + MAX_SECONDS
            while len(server.application.paths) < count and time.monotonic() < deadline:
                time.sleep(0.01)
        time.sleep(0.3)
        assert 0 < server.unsent() <= limit
        assert server.count() < 6
        assert len(exchange(server.port, request).body) == LARGE_BYTES, "who reads is answered"
    wait_until_closed(server)
    assert server.unsent() == 0


def test_requests_may_be_sent_ahead_but_not_without_end(server: SimpleNamespace) -> None:
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    closing = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert exchange(server.port, request * 20 + closing).body.count(b"HTTP/1.1 200 OK") == 20
    answer = exchange(server.port, request * 2_000)
    assert answer.is_closed
    assert answer.body.count(b"200 OK") < 50


def test_what_is_no_http_is_refused_with_a_problem(server: SimpleNamespace) -> None:
    answer = exchange(server.port, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
    assert (answer.status, code(answer), answer.is_closed) == (400, "InvalidRequest", True)


def test_an_upgrade_to_websockets_is_not_offered(server: SimpleNamespace) -> None:
    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert exchange(server.port, upgrade).status == 200


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c", b"CONNECT /x HTTP/1.1"])
@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_nothing_is_read_after_a_request_for_an_upgrade(server: SimpleNamespace, start: bytes, pause: float) -> None:
    following = b"GET /second HTTP/1.1\r\nHost: x\r\n\r\n"
    parts = [start + b"\r\nHost: x\r\n\r\n", following]
    answer = exchange(server.port, *(parts if pause else [b"".join(parts)]), pause=pause)
    assert (answer.status, answer.is_closed, len(server.application.paths)) == (200, True, 1)
    assert "/second" not in server.application.paths
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("framing", [b"Content-Length: 36", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_no_body_is_taken_for_a_request_after_an_upgrade(server: SimpleNamespace, framing: bytes, pause: float) -> None:
    body = b"GET /inner HTTP/1.1\r\nHost: x\r\n\r\n"
    start = b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n" + framing + b"\r\n\r\n"
    answer = exchange(server.port, *([start, body] if pause else [start + body]), pause=pause)
    assert (answer.status, code(answer), answer.is_closed) == (400, "InvalidRequest", True)
    assert server.application.paths == []


def test_connections_are_reused(server: SimpleNamespace) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        ports = {client.get("/").extensions["network_stream"].get_extra_info("client_addr") for _ in range(5)}
        assert client.post("/echo", content=b"b" * 300_000).text == "300000"
    assert len(ports) == 1


@pytest.mark.parametrize("is_half_full", [False, True])
def test_an_idle_connection_is_kept_until_many_are_open(
    server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, is_half_full: bool
) -> None:
    monkeypatch.setattr(protocol, "SHORT_IDLE_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(ConnectionRegister, "is_half_full", lambda register, connection: is_half_full)
    with connect(server.port) as connection:
        for _ in range(1 if is_half_full else 2):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = read_answer(connection, timeout=3 * LIMIT_SECONDS)
            assert (answer.status, answer.is_closed) == (200, is_half_full)


def test_a_server_that_is_replaced_ends_soon_after_its_last_answer(
    server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is kept does not hold it, as a proxy keeps some for a minute."""
    monkeypatch.setattr(draining, "SHORT_IDLE_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(AppStatus, "should_exit", False)  # set for the whole process when a server ends
    with connect(server.port) as connection, connect(server.port) as other:
        for client in (connection, other):
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            received = b""
            while not received.endswith(b"ok"):
                received += client.recv(1_000)
        server.drain()
        server.thread.join(MAX_SECONDS)
        assert not server.thread.is_alive()
        assert (connection.recv(1), other.recv(1)) == (b"", b"")


@pytest.mark.parametrize(("limit", "limit_per_address"), [(5, 10), (10, 5)])
def test_connections_are_many_from_half_of_a_limit_on(limit: int, limit_per_address: int) -> None:
    async def test() -> None:
        register = ConnectionRegister(limit, limit_per_address)
        for count in range(1, 6):
            connection: Any = object()
            register.add(connection, "192.0.2.7")
            assert register.is_half_full(connection) is (count > 2)

    asyncio.run(test())


def test_idle_connections_outlast_those_of_common_clients_and_proxies() -> None:
    nginx_seconds = 60  # its default keepalive_timeout of an upstream; httpx closes after 5
    assert nginx_seconds < protocol.MAX_IDLE_SECONDS


def test_where_the_system_does_not_tell_what_was_read_what_it_has_taken_over_counts() -> None:
    """An old Linux, or a sandbox, knows fewer figures of a connection."""
    connection: Any = SimpleNamespace(family=socket.AF_INET, getsockopt=lambda *_: bytes(104))
    deadline = AnswerDeadline()
    deadline.has_new_answer = True
    assert not deadline.is_over(connection, 5000, now=100.0)
    assert not deadline.is_over(connection, 1000, now=100.0 + progress.MAX_READ_SECONDS)
    assert deadline.is_over(connection, 1000, now=100.1 + progress.MAX_READ_SECONDS)
    assert not deadline.is_over(connection, 0, now=100.1 + progress.MAX_READ_SECONDS), "it was read in the end"


def test_a_stall_ends_with_enough_bytes() -> None:
    stall = Stall()
    stall.restart(0, 100.0)
    later = 100.0 + progress.MAX_STALL_SECONDS
    assert not stall.is_over(0, later)
    assert stall.is_over(MIN_BYTES_PER_STALL - 1, later + 0.1)
    assert not stall.is_over(MIN_BYTES_PER_STALL, later + 0.1)
    assert not stall.is_over(MIN_BYTES_PER_STALL + 1, later + 1)
    assert not stall.is_over(-MIN_BYTES_PER_STALL, later + 1), "there is more to be moved"
    assert not stall.is_over(0, later + 1)
    assert not stall.is_over(0, later + 1 + progress.MAX_STALL_SECONDS)
    assert stall.is_over(0, later + 1.1 + progress.MAX_STALL_SECONDS)


def test_a_client_that_began_fast_is_slow_once_it_goes_on_slowly() -> None:
    stall, rate = Stall(), progress.MIN_CROWDED_RATE
    stall.restart(0, 100.0)
    assert stall.find_slow_since(10**8, 101.0) is None
    for later in (102.0, 120.0):
        assert stall.find_slow_since(10**8 + 4_096, later) == 101.0
    assert stall.find_slow_since(10**8 + 20 * rate, 121.0) is None, "it has caught up"
    assert not stall.is_over(10**8 + 30 * rate, 131.0)
    assert stall.find_slow_since(10**8 + 30 * rate, 132.0) == 131.0


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("64:ff9b::192.0.2.7", "192.0.2.7"),
        ("64:ff9b:1::192.0.2.7", "64:ff9b:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("not:an address", ""),
        ("evil key_id=forged", ""),
    ],
)
def test_clients_are_counted_by_address_or_network(host: str, counted: str) -> None:
    assert group_address(host) == counted


def test_the_register_forgets_closed_connections() -> None:
    async def add_and_remove() -> tuple[list[str], int]:
        register, names = ConnectionRegister(3, 2), [object() for _ in range(3)]
        reasons: list[str] = [register.add(name, "192.0.2.7") for name in names]  # type: ignore[arg-type]
        for name in names:
            register.remove(name)  # type: ignore[arg-type]
            register.remove(name)  # type: ignore[arg-type]
        return reasons, len(register.counts) + len(register.open)

    reasons, remaining = asyncio.run(add_and_remove())
    assert [bool(reason) for reason in reasons] == [False, False, True]
    assert remaining == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\nslow",
        b"GET /whole HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["nothing", "headers", "answered", "slow body", "unread answer"],
)
def test_connections_that_wait_for_their_clients_keep_nobody_out(
    server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Whoever has several addresses can open all connections, which would be refused to everybody else."""
    monkeypatch.setattr(server.register, "max_connections", 12)
    monkeypatch.setattr(connections, "MIN_SLOW_SECONDS", 0.1)
    monkeypatch.setattr(progress, "MAX_STALL_SECONDS", 60)
    for name in ("MAX_HEADER_SECONDS", "SHORT_IDLE_SECONDS"):
        monkeypatch.setattr(protocol, name, 60)
    with ExitStack() as stack:
        kept = stack.enter_context(connect(server.port))
        kept.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_one_answer(kept) == (200, b"ok")
        for number in range(40):
            source = (f"127.0.1.{1 + number % 3}", 0)
            idle = socket.create_connection(("127.0.0.1", server.port), source_address=source)
            stack.enter_context(idle).sendall(sent)
        ask_until_answered(server.port)
        kept.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_one_answer(kept) == (200, b"ok")
        wait_until_closed(server, remaining=12)


@pytest.mark.parametrize(("block", "is_kept_out"), [(200, False), (8_000, True)])
def test_bodies_that_arrive_slowly_keep_nobody_out(
    server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, block: int, is_kept_out: bool
) -> None:
    """More than a stall allows, and less than other clients need: they give up their places. block: bytes in 0.1 s"""
    monkeypatch.setattr(server.register, "max_connections", 8)
    monkeypatch.setattr(connections, "MIN_SLOW_SECONDS", 0.5)
    monkeypatch.setattr(progress, "MIN_BYTES_PER_STALL", 64)
    start = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n"
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(server.port, f"127.0.1.{1 + number % 2}")) for number in range(8)]
        for connection in slow:
            connection.sendall(start)
        for _ in range(8):
            time.sleep(0.1)
            for connection in slow:
                connection.sendall(bytes(block))
        answer = exchange(server.port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (answer.status == 503) == is_kept_out


def test_slow_connections_are_not_closed_for_others_of_their_address(
    server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All connections of a proxy come from one address. Who opens ever new ones would have none be slow for long."""
    monkeypatch.setattr(server.register, "max_connections", 8)
    monkeypatch.setattr(connections, "MIN_SLOW_SECONDS", 0.1)
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(server.port)) for _ in range(8)]
        for connection in slow:
            connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nslow")
        time.sleep(0.3)
        assert exchange(server.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").status == 503
        for connection in slow:
            connection.sendall(b"!")
        assert [read_one_answer(connection) for connection in slow] == [(200, b"5")] * 8


def test_connections_whose_requests_run_are_not_closed_for_others(
    server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.register, "max_connections", 8)
    with ExitStack() as stack:
        busy = [stack.enter_context(connect(server.port)) for _ in range(8)]
        for connection in busy:
            connection.sendall(b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(LIMIT_SECONDS / 4)
        assert exchange(server.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").status == 503
        assert [read_one_answer(connection) for connection in busy] == [(200, b"ok")] * 8


def test_the_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[Any] = []
    monkeypatch.setattr(configuration.resource, "getrlimit", lambda _: (256, 4_096))
    monkeypatch.setattr(configuration.resource, "setrlimit", lambda _, limits: changes.append(limits))
    for count in (100, 1_000, 10_000):
        configuration.raise_file_limit(count)
    assert changes == [(1_000, 4_096), (4_096, 4_096)]


@pytest.mark.parametrize(("variable", "trusts"), [(None, False), ("", False), ("10.0.0.1", True)])
def test_no_proxy_is_believed_unless_it_is_named(
    variable: str | None, trusts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if variable is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", variable)
    assert configure_server(UnreadBodyMiddleware(None), Settings()).proxy_headers is trusts  # type: ignore[arg-type]


def test_a_proxy_of_ipv4_is_believed_by_a_server_of_ipv6_too(monkeypatch: pytest.MonkeyPatch) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        for running in run_server(listener):
            forwarded = b"X-Forwarded-For: 192.0.2.7\r\n"
            for headers in (b"", forwarded):
                request = b"GET / HTTP/1.1\r\nHost: x\r\n" + headers + b"Connection: close\r\n\r\n"
                assert exchange(running.port, request).status == 200
            assert running.application.clients == ["127.0.0.1", "192.0.2.7"]
