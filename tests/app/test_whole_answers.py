"""An answer that is sent in one write is the answer that messages would have sent."""

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from app.config import Settings
from app.deps.server.configuration import configure_server
from app.deps.server.whole_answers import find_send_whole

REQUEST = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n%s\r\nok"


class Transport(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 8_000)})
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def answer(sent: bytes, *, at_once: bool, value: bytes = b"1") -> tuple[Transport, list[bool]]:
    """Send these bytes to a server, and return what it wrote and which answers it took as a whole."""
    taken = list[bool]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = scope["path"].encode() + (await receive())["body"]
        headers = [(b"content-length", str(len(body)).encode()), (b"x-value", value)]
        send_whole = find_send_whole(scope)
        assert send_whole is not None
        if at_once:
            taken.append(send_whole(headers, body))
        if not at_once or not taken[-1]:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    async def run() -> Transport:
        config = configure_server(app, Settings(), lifespan="off")
        config.load()
        state = ServerState()
        state.default_headers = [(b"date", b"now"), (b"server", b"this")]
        transport, protocol = Transport(), config.http_protocol_class(config, state, {})  # type: ignore[call-arg]
        protocol.connection_made(transport)
        protocol.data_received(sent)
        for _ in range(20):
            await asyncio.sleep(0)
        is_closed = transport.is_closed
        protocol.connection_lost(None)  # which closes it in any case
        transport.is_closed = is_closed
        return transport

    return asyncio.run(run()), taken


@pytest.mark.parametrize(
    ("sent", "writes"),
    [(REQUEST % (1, b""), 1), (REQUEST % (1, b"") + REQUEST % (2, b"") + REQUEST % (3, b""), 3)],
    ids=["alone", "pipelined"],
)
def test_an_answer_takes_one_write_and_has_the_same_bytes(sent: bytes, writes: int) -> None:
    whole, taken = answer(sent, at_once=True)
    by_messages, _ = answer(sent, at_once=False)
    assert taken == [True] * writes
    assert len(whole.writes) == writes
    assert b"".join(whole.writes) == b"".join(by_messages.writes)
    assert whole.writes[0].endswith(b"\r\n\r\n/1ok")
    assert not whole.is_closed


def test_an_answer_that_closes_its_connection_goes_by_messages() -> None:
    sent = REQUEST % (1, b"Connection: close\r\n")
    whole, taken = answer(sent, at_once=True)
    assert taken == [False]
    assert whole.is_closed
    assert b"connection: close" in b"".join(whole.writes)


def test_a_header_that_would_end_the_headers_is_not_sent() -> None:
    whole, taken = answer(REQUEST % (1, b""), at_once=True, value=b"1\r\nx-other: 2")
    assert taken == [False]
    assert b"x-other" not in b"".join(whole.writes)


def test_no_line_of_an_access_log_is_put_together() -> None:
    config = configure_server(None, Settings(), lifespan="off")  # type: ignore[arg-type]
    assert not config.access_log
