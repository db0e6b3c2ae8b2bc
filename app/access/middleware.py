"""What a request meets first: its key, its length, its running count of bytes, before any body is parsed."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy.exc import OperationalError
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access import keys
from app.config import Settings
from app.db.session import reading
from app.deps.caller import Caller
from app.errors import AppError, Busy, Forbidden, TooLarge, Unauthenticated, problem
from app.resources import Resources
from app.serving.traffic import RequestTimestamp

REMEMBERED_SECONDS = 5.0
MULTIPART_SLACK = 65_536
LINGER_BYTES = 2**20
LINGER_SECONDS = 2.0


class AuthMiddleware:
    """Answers 401, 403 and 413 itself; lets the rest through with `state.caller` and `state.request_id`."""

    def __init__(
        self, app: ASGIApp, routes: Sequence[BaseRoute], settings: Settings, resources: Callable[[], Resources]
    ) -> None:
        self.app, self.routes, self.settings, self.resources = app, routes, settings, resources
        self._known: dict[str, tuple[float, Caller | None]] = {}
        self._traffic = RequestTimestamp(settings.home)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _header(scope, b"x-request-id")[:100] or secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        try:
            needs, named = self._needs(scope)
            role = needs.get("x-role")
            if role is not None:
                scope["state"]["caller"] = await self._admit(scope, role, named.get("collection"))
                if scope["method"] == "POST":  # work, and not a page that looks how far something is
                    self._traffic.stamp()
            counted = LimitedBody(scope, receive, self._limit(needs.get("x-body", "json")))
        except AppError as error:
            await _answer(scope, receive, send, error)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if counted.over is not None and not started:
                return  # whatever became of the half-read body, the answer is ours
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, counted, sending)
        except TooLarge:
            if started:
                raise
        if counted.over is not None and not started:
            await _answer(scope, receive, send, counted.over)

    def _needs(self, scope: Scope) -> tuple[dict[str, str], dict[str, Any]]:
        """What the route says of itself, and the parameters of its path."""
        for route in self.routes:
            match, child = route.matches(scope)
            if match == Match.FULL:
                return getattr(route, "openapi_extra", None) or {}, child.get("path_params", {})
        return {}, {}

    def _limit(self, body: str) -> int:
        settings = self.settings
        photo = 2 * 4 * (settings.max_image_bytes // 3 + 1) + MULTIPART_SLACK  # verify takes two, maybe as base64
        return {"photo": photo, "archive": settings.max_import_bytes}.get(body, settings.max_json_bytes)

    async def _admit(self, scope: Scope, role: str, collection: str | None) -> Caller:
        scheme, _, bearer = _header(scope, b"authorization").partition(" ")
        secret = bearer.strip() if scheme.lower() == "bearer" else _header(scope, b"x-api-key")
        if not secret:
            raise Unauthenticated("send a key: Authorization: Bearer KEY, or x-api-key: KEY")
        caller = await self._holder(secret)
        if caller is None:
            raise Unauthenticated("this key is not known, or was revoked")
        if not caller.may(role):  # type: ignore[arg-type]
            raise Forbidden(f"this needs the role {role}; the key has {caller.role}")
        if collection is not None:
            caller.check(collection)
        return caller

    async def _holder(self, secret: str) -> Caller | None:
        digest, at = keys.digest(secret), time.monotonic()
        seen, caller = self._known.get(digest, (0.0, None))
        if caller is None or at - seen > REMEMBERED_SECONDS:
            caller = await asyncio.to_thread(self._look_up, secret)
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[digest] = at, caller
        return caller

    def _look_up(self, secret: str) -> Caller | None:
        try:
            with reading(self.resources().database) as session:
                return keys.holder_or_none(session, secret)
        except OperationalError as error:
            raise Busy("the database is away; try again shortly") from error


class LimitedBody:
    """A request's body, as long as it keeps to the limit; raises TooLarge at the byte that goes over."""

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        self.receive, self.limit, self.count = receive, limit, 0
        self.over: TooLarge | None = None
        declared = _header(scope, b"content-length")
        if declared.isdigit() and int(declared) > limit:
            raise self._over()

    async def __call__(self) -> Message:
        message = await self.receive()
        self.count += len(message.get("body", b""))
        if self.count > self.limit:
            self.over = self._over()
            raise self.over
        return message

    def _over(self) -> TooLarge:
        return TooLarge(f"the body may have {self.limit:,} bytes; send less, or raise the limit in the settings")


def _header(scope: Scope, name: bytes) -> str:
    return next((v.decode("latin-1") for k, v in scope["headers"] if k == name), "")


async def _answer(scope: Scope, receive: Receive, send: Send, error: AppError) -> None:
    request_id = scope["state"]["request_id"]
    body = json.dumps(problem(error, request_id)).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
        (b"connection", b"close"),
    ]
    headers += [(b"www-authenticate", b"Bearer")] if error.status == 401 else []
    headers += [(b"retry-after", b"1")] if error.retryable else []
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if not _header(scope, b"expect"):
        with suppress(TimeoutError):
            await asyncio.wait_for(_discard(receive), LINGER_SECONDS)
    await send({"type": "http.response.body"})


async def _discard(receive: Receive) -> None:
    """What is still on its way, for a while: closing on unread bytes resets the connection, and the answer with it."""
    left = LINGER_BYTES
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if not message.get("more_body"):
            return
