"""HTTP/1.1 with limits: uvicorn's protocol over httptools, which by itself bounds neither headers nor time.

The register looks at every connection once a second, so a limit of time is kept to a second.
"""

import socket
from enum import Enum, auto
from typing import Any, NoReturn

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.deps import held_bytes
from app.deps.server.connections import ConnectionRegister, format_address
from app.deps.server.progress import AnswerDeadline, Stall, discard_queued_bytes, limit_queued_bytes
from app.deps.server.refusals import render_refusal
from app.deps.server.whole_answers import EXTENSION, Headers, send_whole
from app.errors import AppError, Busy, HeadersTooLarge, Invalid, RequestTimeout

MAX_HEADER_BYTES = 65_536
"""Of the request line and the headers of one request together; the trailers of a chunked body count too."""
MAX_PATH_BYTES = 4_096
"""Of the path, without the query: three times what the longest names need. Each route and layer reads the path."""
MAX_HEADERS = 100
MAX_HEADER_SECONDS = 10.0
MAX_IDLE_SECONDS = 75
"""Between two requests: longer than common clients and proxies keep a connection (httpx 5 s, nginx 60 s). Whoever gives
up first should be the client, whose next request might otherwise meet the end of the connection and be lost."""
SHORT_IDLE_SECONDS = 6.0
"""Between two requests while half of the connections are in use that the service or an address may have, and while
another process takes over from this one. httpx, which gives up after 5 s, is still the first."""
MAX_PIPELINED_REQUESTS = 32
IPV4_MAPPED = "::ffff:"
"""So a server that listens to IPv6 sees a client of IPv4, whose address no setting names like that."""
MAX_REFUSED_SECONDS = 2.0
MAX_REFUSED_BYTES = 2**20
"""A refused client may send this much for so long before the connection is reset, so that it can read why."""


class Phase(Enum):
    """What the connection waits for."""

    REQUEST = auto()
    HEADERS = auto()
    BODY = auto()
    ANSWER = auto()


class LimitError(Exception):
    """A request exceeds a limit; nothing of it is parsed any further."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. register: all connections of the server"""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None, *,
        register: ConnectionRegister,
    ) -> None:  # fmt: skip
        super().__init__(config, server_state, app_state, _loop)
        self.register = register
        self.phase, self.phase_began_at = Phase.REQUEST, 0.0
        self.max_idle_seconds: float = MAX_IDLE_SECONDS
        self.header_bytes = self.header_count = 0  # that were parsed, trailers included
        self.unparsed_bytes = 0  # received since the request began or since the last part of its body
        self.received_bytes = 0
        self.excess: AppError | None = None
        self.refused_at: float | None = None
        self.refused_bytes = 0
        self.body_stall, self.answer_stall = Stall(), Stall()
        self.answer_deadline = AnswerDeadline()
        self.running: RequestResponseCycle | None = None  # the request that is answered; `cycle` is the one parsed last

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.client is None and _is_tcp(transport):
            self.refused_at = self.loop.time()  # nothing of it is read
            self.transport.abort()
            return
        if self.client is not None and self.client[0].startswith(IPV4_MAPPED):
            self.client = format_address(self.client[0]) or self.client[0], self.client[1]
        if transport.get_extra_info("socket") is not None:
            limit_queued_bytes(transport.get_extra_info("socket"))
        self._enter(Phase.REQUEST)
        self.answer_stall.restart(0, self.phase_began_at)
        if reason := self.register.add(self, self.client[0] if self.client else ""):
            if self.register.is_crowded:
                self.transport.abort()
            else:
                self._refuse(Busy(f"{reason}; try again shortly"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.register.remove(self)
        self.pipeline.clear()
        if self.running is not None:  # uvicorn tells only the request that came last, of those sent ahead
            self.running.disconnected = True
            self.running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = cycle
        cycle.scope["extensions"] = {EXTENSION: {"send": self._send_whole}, held_bytes.EXTENSION: {"sender": self}}
        super()._start_asgi_task(cycle, app)

    def _send_whole(self, headers: Headers, body: bytes) -> bool:
        return self.running is not None and send_whole(self.running, headers, body)

    def data_received(self, data: bytes) -> None:
        if self.refused_at is not None:
            self.refused_bytes += len(data)
            if self.refused_bytes > MAX_REFUSED_BYTES:
                self.transport.abort()
            return
        self.received_bytes += len(data)
        self.unparsed_bytes += len(data)
        super().data_received(data)
        if self.unparsed_bytes > MAX_HEADER_BYTES and self.refused_at is None:
            self._refuse(_describe_long_headers())

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays open for the answer when the client has closed its writing side.

        A client that has gone looks the same until something is written to it. An answer that has begun without a
        length, such as a stream of events, may never end: its client is taken to have gone.
        """
        if self.phase is not Phase.ANSWER or self.refused_at is not None:
            return False
        if self.cycle.response_complete or self.cycle.chunked_encoding:
            return False
        self.cycle.keep_alive = False
        return True

    def on_message_begin(self) -> None:
        self._enter(Phase.HEADERS)
        self.header_bytes = self.header_count = self.unparsed_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_header_bytes(len(url))
        super().on_url(url)
        if len(self.url.partition(b"?")[0]) > MAX_PATH_BYTES:
            self._stop_parsing(HeadersTooLarge(f"the path may have {MAX_PATH_BYTES:,} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header_bytes(len(name) + len(value) + len(b": \r\n"))
        self.header_count += 1
        if self.header_count > MAX_HEADERS:
            self._stop_parsing(HeadersTooLarge(f"a request may have {MAX_HEADERS} headers"))
        if self.phase is Phase.HEADERS:  # else it is a trailer, which may say nothing of who sends the request
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._enter(Phase.BODY)
        self.body_stall.restart(self.received_bytes, self.phase_began_at)
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]):
            self._stop_parsing(_describe_malformed("the only transfer coding that is understood is chunked"))
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1") or (version == "1.0" and codings):
            self._stop_parsing(_describe_malformed("send HTTP/1.1, or HTTP/1.0 without a transfer coding"))
        if self.parser.should_upgrade() and _has_body(self.headers):
            self._stop_parsing(_describe_malformed("a request with a body may not ask for an upgrade or a tunnel"))
        if version == "1.0":  # such a client would take "100 Continue" for the answer
            self.expect_100_continue = False
        super().on_headers_complete()
        if self.parser.should_upgrade():  # the parser has stopped, and would take what follows for another protocol
            self.cycle.keep_alive = False
        if len(self.pipeline) > MAX_PIPELINED_REQUESTS:
            self._stop_parsing(_describe_malformed("too many requests were sent before an answer was read"))

    def on_body(self, body: bytes) -> None:
        self.unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.unparsed_bytes = 0
        self._enter(Phase.ANSWER)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request. uvicorn's own would set a timer as well, for what `check_progress` limits."""
        self.server_state.total_requests += 1
        self.answer_deadline.has_new_answer = True
        if self.phase is Phase.ANSWER and not self.pipeline:
            self._enter(Phase.REQUEST)
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def pause_writing(self) -> None:
        super().pause_writing()
        self.register.count_unsent(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.answer_stall.restart(-self.transport.get_write_buffer_size(), self.loop.time())
        self.register.count_unsent(self, 0)
        super().resume_writing()

    @property
    def stalled_since(self) -> float:
        """When the client last began to read, or moved a part of, what is still unsent."""
        return self.answer_stall.began_at

    @property
    def waiting_since(self) -> float | None:
        """Since when the connection has waited for a request, or for the rest of its headers; None if it does not."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        is_waiting = self.phase in (Phase.REQUEST, Phase.HEADERS) and not is_answering and self.refused_at is None
        return self.phase_began_at if is_waiting and not self.transport.get_write_buffer_size() else None

    @property
    def slow_since(self) -> float | None:
        """Since when its client has sent little of a body, or read little of an answer; None if neither is awaited."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes:
            return self.answer_stall.find_slow_since(-unsent_bytes, self.loop.time())
        if self.phase is Phase.BODY and not self.flow.read_paused:
            return self.body_stall.find_slow_since(self.received_bytes, self.loop.time())
        return None

    @property
    def is_sending(self) -> bool:
        """Whether the body of the request that is answered has not arrived whole. See `held_bytes.Sender`."""
        return self.running is not None and self.running.more_body

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def refuse(self, error: AppError) -> None:
        """Answer the request whose body is arriving, and close the connection. See `held_bytes.Sender`."""
        if self.refused_at is None and not self.transport.is_closing():
            self._refuse(error)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed or exceeds a limit. uvicorn calls this."""
        self._refuse(self.excess or _describe_malformed("this is not a valid HTTP/1.1 request"))

    def check_progress(self, now: float) -> None:
        """Close the connection if its client sends or reads too slowly, or sends no request."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if self.flow.write_paused:
            self.register.count_unsent(self, unsent_bytes)
        if not unsent_bytes:
            self.answer_stall.restart(0, now)
        elif self.answer_stall.is_over(-unsent_bytes, now):
            self._cut_off()
            return
        if self._has_read_too_slowly(unsent_bytes, now):
            self._cut_off()
            return
        waited_seconds = now - self.phase_began_at
        if self.refused_at is not None:
            if now - self.refused_at > MAX_REFUSED_SECONDS:
                self.transport.abort()
        elif self.flow.read_paused or self.transport.is_closing():
            self.body_stall.restart(self.received_bytes, now)
        elif self.phase is Phase.BODY and self.body_stall.is_over(self.received_bytes, now):
            self._refuse(RequestTimeout("the body of the request arrives too slowly"))
        elif self.phase is Phase.HEADERS and waited_seconds > MAX_HEADER_SECONDS:
            self._refuse(RequestTimeout(f"the headers were not complete within {MAX_HEADER_SECONDS:.0f} seconds"))
        elif self.phase is Phase.REQUEST and waited_seconds > self._find_max_idle_seconds():
            self.transport.close()

    def _has_read_too_slowly(self, unsent_bytes: int, now: float) -> bool:
        if self.transport.is_closing() and not unsent_bytes:
            return False  # the number of its socket may be another one's already
        return self.answer_deadline.is_over(self.transport.get_extra_info("socket"), unsent_bytes, now)

    def _cut_off(self) -> None:
        """Close the connection, and have the system send no more of its answer."""
        discard_queued_bytes(self.transport.get_extra_info("socket"))
        self.transport.abort()

    def _find_max_idle_seconds(self) -> float:
        if self.cycle is None:
            return MAX_HEADER_SECONDS
        return SHORT_IDLE_SECONDS if self.register.is_half_full(self) else self.max_idle_seconds

    def _enter(self, phase: Phase) -> None:
        self.phase, self.phase_began_at = phase, self.loop.time()

    def _count_header_bytes(self, count: int) -> None:
        self.header_bytes += count
        if self.header_bytes > MAX_HEADER_BYTES:
            self._stop_parsing(_describe_long_headers())

    def _stop_parsing(self, error: AppError) -> NoReturn:
        """The parser turns what its callbacks raise into its own error, for which uvicorn calls send_400_response."""
        self.excess = error
        raise LimitError

    def _refuse(self, error: AppError) -> None:
        """Answer with a problem and close the connection, or only close it if another answer has begun."""
        self.refused_at = self.loop.time()
        self._unset_keepalive_if_required()
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.pipeline or (is_answering and self.cycle.response_started):
            self.pipeline.clear()
            self.transport.abort()
            return
        self.transport.write(render_refusal(error, self.server_state.default_headers))
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()


def _is_tcp(transport: Any) -> bool:
    """Return whether a client has an address here. One that has reset its connection already has lost it."""
    connection = transport.get_extra_info("socket")
    return connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6)


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a body follows. The parser drops it after an upgrade, or takes it for the next request."""
    given = dict(headers)
    return b"transfer-encoding" in given or given.get(b"content-length", b"0") != b"0"


def _describe_long_headers() -> HeadersTooLarge:
    return HeadersTooLarge(f"the request line and the headers may have {MAX_HEADER_BYTES:,} bytes")


def _describe_malformed(detail: str) -> Invalid:
    error = Invalid(detail, code="InvalidRequest")
    error.status = 400
    return error
