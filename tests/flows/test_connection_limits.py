"""What clients without a key can make `likeness serve` keep: neither memory nor connections."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.raw_http import RawAnswer, connect, find_free_port, read_answer, read_one_answer, send_until_answered
from tests.service_subprocess import LIKENESS_COMMAND, ROOT

MIB = 2**20
MAX_KEPT_MEGABYTES = 40
BLOCK = b"x" * MIB
ENDLESS_HEADERS = {
    "one header": (b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: ", BLOCK),
    "many headers": (
        b"GET /livez HTTP/1.1\r\nHost: x\r\n",
        b"".join(b"X-%06d: %d\r\n" % (i, i) for i in range(50_000)),
    ),
    "the request line": (b"GET /", BLOCK),
    "the name of a header": (b"GET /livez HTTP/1.1\r\n", BLOCK),
    "empty lines": (b"\r\n", b"\r\n" * (MIB // 2)),
    "a trailer": (b"POST /none HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Long: ", BLOCK),
    "an extension of a chunk": (b"POST /none HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;", BLOCK),
}
"""What the endless headers consist of -> the start of the request, and what is sent again and again."""


@contextmanager
def run_server(home: Path, **settings: int) -> Iterator[tuple[psutil.Process, int]]:
    """Run the API as an operator does. Yields its process and its port."""
    port = find_free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_")}
    environment |= {"LIKENESS_HOME": str(home), "LIKENESS_DEFAULT_RECOGNISER": "lbp"}
    environment |= {f"LIKENESS_{name.upper()}": str(value) for name, value in settings.items()}
    command = [*LIKENESS_COMMAND, "serve", "--no-workers", "--port", str(port)]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until_ready(port)
            [api] = psutil.Process(process.pid).children()
            yield api, port
        finally:
            process.kill()


def wait_until_ready(port: int, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the API did not start")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[psutil.Process, int]]:
    with run_server(tmp_path_factory.mktemp("home")) as started:
        yield started


def check_problem(answer: RawAnswer, status: int) -> None:
    """Check that the answer is this problem and that the connection was closed."""
    assert (answer.status, answer.is_closed) == (status, True)
    assert json.loads(answer.body)["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("kind", ENDLESS_HEADERS)
def test_endless_headers_are_refused_and_not_kept(server: tuple[psutil.Process, int], kind: str) -> None:
    process, port = server
    start, block = ENDLESS_HEADERS[kind]
    before = process.memory_info().rss
    with connect(port) as connection:
        answer = send_until_answered(connection, start, block, count=200)
    kept = (process.memory_info().rss - before) // MIB
    assert kept < MAX_KEPT_MEGABYTES
    assert answer.sent < 20 * MIB
    assert answer.is_closed
    if kind == "the name of a header":
        assert answer.status in (400, 431)
    elif "Transfer-Encoding" not in start.decode():
        check_problem(answer, 431)


def test_clients_together_cannot_fill_the_memory(server: tuple[psutil.Process, int]) -> None:
    process, port = server
    before = process.memory_info().rss
    start = b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%03d: %s\r\n" % (i, b"x" * 600) for i in range(90))
    with ExitStack() as stack:
        for _ in range(250):
            stack.enter_context(connect(port)).sendall(start)
        assert httpx.get(f"http://127.0.0.1:{port}/livez").status_code == 200
        assert (process.memory_info().rss - before) // MIB < 2 * MAX_KEPT_MEGABYTES


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("POST /none", "", 404),
        ("POST /", "", 405),
        ("POST /livez", "", 405),
        ("DELETE /v1/labels/x", "", 404),
        ("PATCH /v1/labels", "", 405),
        ("POST /v1/labels", "", 401),
        ("POST /v1/labels", "x-api-key: lk_none\r\n", 401),
        ("POST /v1/collections/a:import", "x-api-key: lk_none\r\n", 401),
        ("GET /", "", 200),
    ],
)
@pytest.mark.parametrize("length", [f"Content-Length: {2**31}", "Transfer-Encoding: chunked"])
def test_a_body_that_nobody_wants_is_not_read(
    server: tuple[psutil.Process, int], request_line: str, headers: str, status: int, length: str
) -> None:
    block = BLOCK if "Content" in length else b"100000\r\n%s\r\n" % BLOCK
    started = time.monotonic()
    with connect(server[1]) as connection:
        start = f"{request_line} HTTP/1.1\r\nHost: x\r\n{headers}{length}\r\n\r\n".encode()
        answer = send_until_answered(connection, start, block, count=2_000)
    assert (answer.status, answer.is_closed) == (status, True)
    assert answer.headers["connection"] == "close"
    assert answer.sent < 20 * MIB
    assert time.monotonic() - started < 5
    assert ("allow" in answer.headers) == (status == 405)


def test_connections_are_limited_by_address_and_in_all(tmp_path: Path) -> None:
    with run_server(tmp_path, max_connections=6, max_connections_per_address=4) as (_, port), ExitStack() as stack:
        for source, count in (("127.0.0.1", 4), ("127.0.0.2", 2)):
            for _ in range(count):
                stack.enter_context(connect(port, source)).sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
        time.sleep(0.5)
        with connect(port, "127.0.0.1") as connection:
            answer = read_answer(connection)
        check_problem(answer, 503)
        assert answer.headers["retry-after"] == "1"
        assert "from this address" in answer.body.decode()
        with connect(port, "127.0.0.3") as connection:  # in place of one that waits for the rest of its headers
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert read_one_answer(connection)[0] == 200
        stack.close()
        time.sleep(0.5)
        assert httpx.get(f"http://127.0.0.1:{port}/livez").status_code == 200
