"""`X-Change-Number`: the change of a collection that a write has made, so that a later search can ask to see it."""

from typing import Annotated

from fastapi import Header
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.db.written_changes import collect_changes

NAME = "X-Change-Number"
UNREADABLE = -1
NAME_IN_SCOPE = NAME.lower().encode()
MAX_PLAIN_DIGITS = 18
"""So many digits are surely within the largest number."""
READING_METHODS = ("GET", "HEAD", "OPTIONS")

ChangeNumber = Annotated[
    int | None,
    Header(
        alias=NAME,
        ge=0,
        le=2**63 - 1,
        description="answer from this change of the collection or a later one; the answer to the write told its number",
        examples=[1042],
    ),
]


def read_change_number(scope: Scope) -> int | None:
    """Return the number that a request sends, None if it sends none, UNREADABLE if that is not plainly a number."""
    sent = [value for name, value in scope["headers"] if name == NAME_IN_SCOPE]
    if not sent:
        return None
    if len(sent) > 1 or not sent[0].isdigit() or len(sent[0]) > MAX_PLAIN_DIGITS:
        return UNREADABLE
    return int(sent[0])


class ChangeNumberMiddleware:
    """Adds the header to the answer of a request that succeeds and has changed one collection."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING_METHODS or scope["state"].get("is_read"):
            await self.app(scope, receive, send)
            return
        with collect_changes() as changes:

            async def send_with_number(message: Message) -> None:
                if message["type"] == "http.response.start" and message["status"] < 300 and len(changes) == 1:
                    MutableHeaders(scope=message)[NAME] = str(*changes.values())
                await send(message)

            await self.app(scope, receive, send_with_number)
