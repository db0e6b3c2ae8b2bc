"""Call an ASGI application directly, without a server, with exactly these messages."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass
class Answer:
    """What an application has sent."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    def get_header(self, name: str) -> str | None:
        """Return a header, which may occur only once."""
        [*values] = [value.decode() for key, value in self.headers if key == name.encode()]
        assert len(values) <= 1, values
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)


def call(
    app: ASGIApp, method: str, path: str, *, headers: Iterable[tuple[str, str]] = (), chunks: Iterable[bytes] = (b"",),
    query: str = "", client: tuple[str, int] | None = ("192.0.2.7", 50_000), state: dict[str, Any] | None = None,
    root_path: str = "",
) -> Answer:  # fmt: skip
    """Send a request whose body arrives in these chunks, and return the answer.

    state: of the request; the application adds to it
    """
    scope: Scope = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(), "client": client,
        "root_path": root_path,
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "state": {} if state is None else state,
    }  # fmt: skip
    waiting = list(chunks)
    answer = Answer()

    async def receive() -> Message:
        if not waiting:
            return {"type": "http.disconnect"}
        chunk = waiting.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(waiting)}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            assert not answer.status, "the answer has started already"
            answer.status, answer.headers = message["status"], list(message["headers"])
        else:
            assert message["type"] == "http.response.body"
            answer.body += message["body"]

    asyncio.run(_run(app, scope, receive, send))
    return answer


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)
