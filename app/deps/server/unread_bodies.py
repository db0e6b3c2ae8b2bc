"""Close a connection whose request is answered before its body has arrived, instead of reading the rest."""

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_DISCARDED_BYTES = 2**20
MAX_DISCARD_SECONDS = 2.0


class UnreadBodyMiddleware:
    """Sends `Connection: close` with an answer that begins before the whole body was read.

    The connection stays open until the client has sent MAX_DISCARDED_BYTES more, has paused, or
    MAX_DISCARD_SECONDS have passed: closing while bytes are unread resets a connection, and the client might never see
    the answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(scope):
            await self.app(scope, receive, send)
            return
        is_read, closes = False, False

        async def receive_and_note_end() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def send_and_close(message: Message) -> None:
            nonlocal closes
            if message["type"] == "http.response.start" and not is_read:
                closes = True
                headers = [header for header in message.get("headers", ()) if header[0].lower() != b"connection"]
                message["headers"] = [*headers, (b"connection", b"close")]
            if not closes or message["type"] != "http.response.body" or message.get("more_body"):
                await send(message)
                return
            await send({**message, "more_body": True})
            if not is_read and not any(name == b"expect" for name, _ in scope["headers"]):
                with suppress(TimeoutError):
                    await asyncio.wait_for(_discard_body(receive), MAX_DISCARD_SECONDS)
            await send({"type": "http.response.body"})

        await self.app(scope, receive_and_note_end, send_and_close)


def _has_body(scope: Scope) -> bool:
    return any(
        (name == b"content-length" and value != b"0") or name == b"transfer-encoding"
        for name, value in scope["headers"]
    )


async def _discard_body(receive: Receive) -> None:
    remaining_bytes = MAX_DISCARDED_BYTES
    while remaining_bytes > 0:
        message = await receive()
        remaining_bytes -= len(message.get("body", b""))
        if not message.get("more_body"):
            return
