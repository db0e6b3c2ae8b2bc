"""Send a whole answer in one write: an extension of ASGI, whose messages cost a write and a check for each part."""

import re
from collections.abc import Callable, Sequence

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

EXTENSION = "likeness.whole_answer"
FORBIDDEN_BYTES = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

Headers = Sequence[tuple[bytes, bytes]]
SendWhole = Callable[[Headers, bytes], bool]


def find_send_whole(scope: Scope) -> SendWhole | None:
    """Return the function that sends an answer with status 200 to this request; None if the server has none.

    It returns False if it has sent nothing, because the connection is to be closed or takes no more bytes now: the
    answer must then be sent by messages. The headers must state the length of the body.
    """
    send: SendWhole | None = scope.get("extensions", {}).get(EXTENSION, {}).get("send")
    return send


def send_whole(cycle: RequestResponseCycle, headers: Headers, body: bytes) -> bool:
    """See `find_send_whole`. cycle: uvicorn's state of the request"""
    is_plain = cycle.keep_alive and not (cycle.response_started or cycle.disconnected or cycle.flow.write_paused)
    if not is_plain or FORBIDDEN_BYTES.search(b"".join([value for _, value in headers])):
        return False
    lines = [name + b": " + value for name, value in (*cycle.default_headers, *headers)]
    cycle.transport.write(b"\r\n".join([STATUS_LINE[200] + lines[0], *lines[1:], b"", body]))
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()
    cycle.on_response()
    return True
