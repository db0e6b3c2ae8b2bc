"""Refuse requests with too many parameters, or names that are not UTF-8, and JSON bodies that are too deep or large, or
have a key twice.

This happens before the framework parses them: it makes an error of each part that it does not know.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.deps.problem_response import make_problem_response
from app.deps.server.json_limits import DEFAULT_LIMITS, JsonLimits, check_json, is_surely_accepted
from app.errors import Invalid

MAX_QUERY_PARAMETERS = 100
CHECKS = CapacityLimiter(1)
"""A check holds Python's lock, so that several at once would not be faster."""
MAX_BYTES_AT_ONCE = 4_096
"""So few are checked on the event loop, in two milliseconds at most, and do not wait for the check of a long body."""
LINES = {"x-body": "lines"}
"""The entry of a route's `openapi_extra` for a body of lines, each of which the route checks itself."""


def allow_values(count: int) -> dict[str, Any]:
    """Return the entry of a route's `openapi_extra` that lets its JSON bodies have this many values."""
    return {"x-max-json-values": count}


class RequestStructureMiddleware:
    """Runs after AuthMiddleware, which states the requirements of the route, next to the routes themselves."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        requirements = scope.get("state", {}).get("requirements", {})
        if scope["type"] != "http" or "x-role" not in requirements:
            await self.app(scope, receive, send)
            return
        try:
            _check_query(scope)
            _check_encoding("path", scope.get("raw_path") or b"")
            _check_encoding("query", scope["query_string"])
            if _takes_json(scope, requirements):
                receive = await self._check_body(receive, requirements)
        except Invalid as error:
            await make_problem_response(scope, error)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    async def _check_body(self, receive: Receive, requirements: Mapping[str, Any]) -> Receive:
        """Return a `receive` that yields the body again. Raises Invalid."""
        messages = await _receive_body(receive)
        limits = JsonLimits(values=requirements.get("x-max-json-values", DEFAULT_LIMITS.values))
        body = messages[0]["body"]
        if len(body) <= MAX_BYTES_AT_ONCE:
            check_json(body, limits)
        elif not is_surely_accepted(body, limits):
            await run_sync(check_json, body, limits, limiter=CHECKS)

        async def receive_again() -> Message:
            return messages.pop(0) if messages else await receive()

        return receive_again


def _check_query(scope: Scope) -> None:
    """Raises Invalid."""
    count = scope["query_string"].count(b"&") + 1
    if count > MAX_QUERY_PARAMETERS:
        raise Invalid(f"the query has {count:,} parameters; at most {MAX_QUERY_PARAMETERS} are allowed")


def _check_encoding(part: str, encoded: bytes) -> None:
    """Raises Invalid if a part of the address is not UTF-8: names that differ in such bytes would be read as one."""
    if b"%" in encoded:
        try:
            unquote_to_bytes(encoded).decode()
        except UnicodeDecodeError as error:
            raise Invalid(f"the {part} is not UTF-8: byte {error.start} of it, decoded, begins no character") from error


def _takes_json(scope: Scope, requirements: Mapping[str, Any]) -> bool:
    """Return whether the framework would parse the body as JSON. Routes of photos and archives parse it themselves."""
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    return "x-body" not in requirements and kind.endswith("json")


async def _receive_body(receive: Receive) -> list[Message]:
    """Return the whole body as one message, and the disconnection if that came first."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return [{"type": "http.request", "body": bytes(body), "more_body": True}, message]
        body += message.get("body", b"")
        if not message.get("more_body"):
            return [{"type": "http.request", "body": bytes(body), "more_body": False}]
