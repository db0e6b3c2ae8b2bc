"""Forms with photos: the client chooses no decoder, and their text is limited in number, length and memory."""

import asyncio
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from app.db.field_types import MAX_METADATA_BYTES
from app.deps import held_bytes, photos
from app.deps.held_bytes import FREE_BODY_BYTES, HeldBytes
from app.deps.server import progress
from app.deps.uploads.photo_form import MAX_FIELD_BYTES
from tests.raw_http import connect
from tests.service import Service

BASE = "/v1/collections/forms"


@pytest.fixture
def service(lasting_service: Service) -> Service:
    """The service of the module, with an empty collection."""
    lasting_service.client.put(BASE).raise_for_status()
    return lasting_service


def make_form(*parts: tuple[str, bytes]) -> bytes:
    """Return a form with the boundary `x`; a part named `file` is a file."""
    body = b""
    for name, content in parts:
        of_file = '; filename="a.png"' if name == "file" else ""
        body += f'--x\r\nContent-Disposition: form-data; name="{name}"{of_file}\r\n\r\n'.encode() + content + b"\r\n"
    return body + b"--x--\r\n"


def post(service: Service, path: str, body: bytes, more: str = "") -> httpx.Response:
    headers = {"Content-Type": f"multipart/form-data; boundary=x{more}"}
    return service.client.post(f"{BASE}{path}", content=body, headers=headers)


@pytest.mark.parametrize("charset", ["punycode", "undefined", '"PunyCode"', "idna", "utf-7", "utf-16", "", "unknown"])
def test_a_client_chooses_no_decoder(service: Service, charset: str) -> None:
    """Starlette decodes with whatever Python has: 300 KB of punycode take seconds on the event loop."""
    body = make_form(("a", b"A" * 300_000))
    for path in ("/search", "/faces"):
        answer = post(service, path, body, f"; charset={charset}")
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidParameter")
        assert repr(charset.strip('"')) in answer.json()["detail"]


@pytest.mark.parametrize("charset", ["utf-8", '"UTF-8"', "us-ascii", "ISO-8859-1", "latin-1"])
def test_usual_charsets_are_read(service: Service, charset: str) -> None:
    answer = post(service, "/faces", make_form(("file", b"no photo"), ("subject", b"ada")), f"; charset={charset}")
    assert (answer.status_code, answer.json()["code"]) == (422, "InvalidImageFormat")


@pytest.mark.parametrize("path", ["/search", "/faces"])
def test_a_form_with_many_fields_is_refused_before_it_ends(service: Service, path: str) -> None:
    url = httpx.URL(service.url)
    head = [f"POST {BASE}{path} HTTP/1.1", "Host: x", "Content-Type: multipart/form-data; boundary=x"]
    head += ["Content-Length: 40000000", f"Authorization: {service.key('operator')['Authorization']}", "", ""]
    body = make_form(*((f"f{n}", b"A" * 100) for n in range(20))).removesuffix(b"--x--\r\n")
    with connect(url.port or 80) as connection:
        connection.sendall("\r\n".join(head).encode() + body)
        answer = "".join(iter(lambda: connection.recv(65_536).decode(), ""))  # until the service closes it
    assert answer.startswith("HTTP/1.1 422 ")
    assert "too many fields: this request takes" in answer


def test_limits_of_a_form_are_named(service: Service) -> None:
    for body, limit in (
        (make_form(("metadata", b"A" * (MAX_FIELD_BYTES + 1))), "'metadata' of the form has more than 196,608 bytes"),
        (make_form(*[("file", b"")] * 3), "too many files: this request takes 2 at most"),
    ):
        answer = post(service, "/faces", body)
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidParameter")
        assert limit in answer.json()["detail"]


def test_the_longest_metadata_may_be_written_with_escapes(service: Service) -> None:
    metadata = json.dumps({"note": "é" * (MAX_METADATA_BYTES // 2 - 20)})
    assert len(metadata) > 2.9 * MAX_METADATA_BYTES
    answer = post(service, "/faces", make_form(("file", b"no photo"), ("metadata", metadata.encode())))
    assert answer.json()["code"] == "InvalidImageFormat"


def test_text_counts_with_what_it_may_take_in_memory(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "MAX_WHOLE_FORM_BYTES", 0)
    body = make_form(("subject", b"A" * 300))
    for limit, status in ((1_300, 422), (1_100, 503)):
        held = HeldBytes(limit)
        monkeypatch.setattr(photos, "PHOTO_BYTES", held)
        assert post(service, "/faces", body).status_code == status
        assert held.count == 0


def test_short_forms_count_while_they_arrive(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldBytes(1_000)
    monkeypatch.setattr(photos, "PHOTO_BYTES", held)
    assert post(service, "/search", make_form(("other", b""), ("file", bytes(1_000)))).status_code == 503
    assert held.count == 0


@contextmanager
def send_slowly(service: Service, sent: int, length: int, key: dict[str, str]) -> Iterator[socket.socket]:
    """Send the first so many bytes of a photo in JSON at once, and then no more, until the block ends."""
    head = [f"POST {BASE}/search HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {length}"]
    head += [f"Authorization: {key['Authorization']}", "", ""]
    with connect(httpx.URL(service.url).port or 80) as connection:
        connection.sendall("\r\n".join(head).encode() + b'{"image":"'.ljust(sent, b"A"))
        yield connection


def post_until_read(service: Service, seconds: float, key: dict[str, str]) -> tuple[int, int]:
    """Post a photo that cannot be decoded until it is read, or the time is over: the status, and how many were 503."""
    deadline, refused = time.monotonic() + seconds, 0
    while True:
        answer = service.client.post(f"{BASE}/search", json={"image": "A" * 100_000}, headers=key)
        if answer.status_code != 503 or time.monotonic() > deadline:
            return answer.status_code, refused
        refused += 1
        time.sleep(0.05)


@pytest.mark.parametrize("has_other_key", [True, False])
@pytest.mark.parametrize("counter", ["PHOTO_BYTES", "FORM_BYTES"])
def test_bodies_that_arrive_slowly_hold_no_memory_that_others_want(
    service: Service, monkeypatch: pytest.MonkeyPatch, counter: str, has_other_key: bool
) -> None:
    """The slow ones begin fast, which 128 MiB hold for hours if they may go on slowly."""
    filled = 2 * (480_000 - (FREE_BODY_BYTES if counter == "FORM_BYTES" else 0))
    held = HeldBytes(filled + 20_000)
    monkeypatch.setattr(photos if counter == "PHOTO_BYTES" else held_bytes, counter, held)
    monkeypatch.setattr(held_bytes, "MIN_SLOW_SECONDS", 0.5)
    slow, other = service.key("reader"), service.key("reader")
    with ExitStack() as stack:
        connections = [stack.enter_context(send_slowly(service, 480_000, 900_000, slow)) for _ in range(2)]
        wait_until(lambda: held.count == filled)
        status, refused = post_until_read(service, 20, other if has_other_key else slow)
        assert (status, refused > 0) == (422, True)
        gone = [connection for connection in connections if select.select([connection], [], [], 0)[0]]
        assert len(gone) == 1, "the other one holds nothing that anybody wants"
        answer = gone[0].recv(65_536).decode()
        assert answer.startswith("HTTP/1.1 503 ")
        assert "Throttling" in answer
    wait_until(lambda: held.count == 0)
    assert not held.arriving


def test_a_key_that_holds_most_of_the_memory_gives_way_to_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldBytes(980_000)
    monkeypatch.setattr(photos, "PHOTO_BYTES", held)
    monkeypatch.setattr(held_bytes, "MIN_SLOW_SECONDS", 0.5)
    monkeypatch.setattr(progress, "MIN_CROWDED_RATE", 0)  # nobody is slow
    greedy, other = service.key("reader"), service.key("reader")
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(send_slowly(service, 480_000, 900_000, greedy))
        wait_until(lambda: held.count == 960_000)
        assert post_until_read(service, 1.5, greedy)[0] == 503
        assert post_until_read(service, 20, other)[0] == 422
    wait_until(lambda: held.count == 0)


def test_a_body_that_has_arrived_gives_way_to_none(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for one that is parsed, and is carried out."""
    held, may_parse, parse = HeldBytes(250_000), threading.Event(), photos._parse_json
    monkeypatch.setattr(photos, "PHOTO_BYTES", held)
    monkeypatch.setattr(held_bytes, "MIN_SLOW_SECONDS", 0.1)

    def parse_later(*args: Any) -> Any:
        may_parse.wait(30)
        return parse(*args)

    monkeypatch.setattr(photos, "_parse_json", parse_later)
    greedy, other = service.key("reader"), service.key("reader")
    with ThreadPoolExecutor(2) as pool:
        whole = [pool.submit(post_until_read, service, 0, greedy) for _ in range(2)]
        wait_until(lambda: held.count > 200_000)
        time.sleep(0.2)
        assert post_until_read(service, 0.3, other)[0] == 503
        may_parse.set()
        assert [one.result()[0] for one in whole] == [422, 422]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_so()


def test_fields_are_validated_beside_the_event_loop(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, has_loop = photos._parse_form, []

    def note_thread(*args: Any) -> Any:
        has_loop.append(asyncio._get_running_loop() is not None)
        return parse(*args)

    monkeypatch.setattr(photos, "_parse_form", note_thread)
    post(service, "/faces", make_form(("file", b"no photo"), ("metadata", b"{}")))
    assert has_loop == [False]
