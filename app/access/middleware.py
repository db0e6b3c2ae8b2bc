"""Check the key, the role and the length of a request before its body is parsed."""

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
from app.errors import AppError, Busy, Forbidden, TooLarge, Unauthenticated, describe_problem
from app.resources import Resources
from app.serving.traffic import RequestTimestamp

KEY_CACHE_SECONDS = 5.0
MAX_CACHED_KEYS = 10_000
MULTIPART_OVERHEAD_BYTES = 65_536
MAX_DISCARDED_BYTES = 2**20
MAX_DISCARD_SECONDS = 2.0


class AuthMiddleware:
    """Answers 401, 403 and 413 itself. All other requests get `state.caller` and `state.request_id`."""

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
        request_id = _get_header(scope, b"x-request-id")[:100] or secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        try:
            requirements, path_params = self._match_route(scope)
            role = requirements.get("x-role")
            if role is not None:
                scope["state"]["caller"] = await self._authenticate(scope, role, path_params.get("collection"))
                if scope["method"] == "POST":  # a page that polls for progress does not count as traffic
                    self._traffic.stamp()
            body = LimitedBody(scope, receive, self._max_body_bytes(requirements.get("x-body", "json")))
        except AppError as error:
            await _send_problem(scope, receive, send, error)
            return
        started = False

        async def send_with_request_id(message: Message) -> None:
            nonlocal started
            if body.error is not None and not started:
                return  # the 413 below replaces what the route made of the incomplete body
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, body, send_with_request_id)
        except TooLarge:
            if started:
                raise
        if body.error is not None and not started:
            await _send_problem(scope, receive, send, body.error)

    def _match_route(self, scope: Scope) -> tuple[dict[str, str], dict[str, Any]]:
        """Return what the route requires (`x-role`, `x-body`), and the parameters of its path."""
        for route in self.routes:
            match, child = route.matches(scope)
            if match == Match.FULL:
                return getattr(route, "openapi_extra", None) or {}, child.get("path_params", {})
        return {}, {}

    def _max_body_bytes(self, kind: str) -> int:
        settings = self.settings
        two_photos_as_base64 = 2 * 4 * (settings.max_image_bytes // 3 + 1)
        photo = two_photos_as_base64 + MULTIPART_OVERHEAD_BYTES
        return {"photo": photo, "archive": settings.max_import_bytes}.get(kind, settings.max_json_bytes)

    async def _authenticate(self, scope: Scope, role: str, collection: str | None) -> Caller:
        scheme, _, bearer = _get_header(scope, b"authorization").partition(" ")
        secret = bearer.strip() if scheme.lower() == "bearer" else _get_header(scope, b"x-api-key")
        if not secret:
            raise Unauthenticated("send a key: Authorization: Bearer KEY, or x-api-key: KEY")
        caller = await self._find_caller(secret)
        if caller is None:
            raise Unauthenticated("this key is unknown or was revoked")
        if not caller.may(role):  # type: ignore[arg-type]
            raise Forbidden(f"this operation needs the role {role}; the key has the role {caller.role}")
        if collection is not None:
            caller.check(collection)
        return caller

    async def _find_caller(self, secret: str) -> Caller | None:
        """Find the holder of a key. A key that is known is looked up again after KEY_CACHE_SECONDS."""
        digest, time_now = keys.hash_secret(secret), time.monotonic()
        looked_up_at, caller = self._known.get(digest, (0.0, None))
        if caller is None or time_now - looked_up_at > KEY_CACHE_SECONDS:
            caller = await asyncio.to_thread(self._look_up, secret)
            if len(self._known) > MAX_CACHED_KEYS:
                self._known.clear()
            self._known[digest] = time_now, caller
        return caller

    def _look_up(self, secret: str) -> Caller | None:
        try:
            with reading(self.resources().database) as session:
                return keys.find_caller(session, secret)
        except OperationalError as error:
            raise Busy("the database cannot be reached; try again shortly") from error


class LimitedBody:
    """The body of a request, which may have `limit` bytes. Raises TooLarge as soon as it has more.

    error: the error that was raised, None while the body is within the limit
    """

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        self.receive, self.limit, self.count = receive, limit, 0
        self.error: TooLarge | None = None
        declared = _get_header(scope, b"content-length")
        if declared.isdigit() and int(declared) > limit:
            raise self._make_error()

    async def __call__(self) -> Message:
        message = await self.receive()
        self.count += len(message.get("body", b""))
        if self.count > self.limit:
            self.error = self._make_error()
            raise self.error
        return message

    def _make_error(self) -> TooLarge:
        return TooLarge(f"the body may have {self.limit:,} bytes; send less, or raise the limit in the settings")


def _get_header(scope: Scope, name: bytes) -> str:
    return next((v.decode("latin-1") for k, v in scope["headers"] if k == name), "")


async def _send_problem(scope: Scope, receive: Receive, send: Send, error: AppError) -> None:
    request_id = scope["state"]["request_id"]
    body = json.dumps(describe_problem(error, request_id)).encode()
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
    if not _get_header(scope, b"expect"):
        with suppress(TimeoutError):
            await asyncio.wait_for(_discard_body(receive), MAX_DISCARD_SECONDS)
    await send({"type": "http.response.body"})


async def _discard_body(receive: Receive) -> None:
    """Read what the client still sends, up to a limit.

    If a connection is closed while bytes are unread, it is reset, and the client may never see the answer.
    """
    remaining_bytes = MAX_DISCARDED_BYTES
    while remaining_bytes > 0:
        message = await receive()
        remaining_bytes -= len(message.get("body", b""))
        if not message.get("more_body"):
            return
