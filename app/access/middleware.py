"""Check the key, the role, the scope and the length of a request before its body is parsed."""

import json
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.request_checks import MAX_SMALL_JSON_BYTES, RequestChecks
from app.deps import held_bytes
from app.deps.held_bytes import FREE_BODY_BYTES, HeldShare
from app.deps.idempotency.middleware import takes_key
from app.deps.server.request_headers import choose_request_id, find_header
from app.errors import AppError, TooLarge, describe_problem


class AuthMiddleware:
    """Answers 401, 403, 413, 429 and, for what belongs to collections that the key is not bound to, 404 itself.

    All other requests get `state.caller`, `state.request_id`, and `state.secret_field` and `state.is_read` (see
    IdempotencyMiddleware).
    `state.requirements` and `state.path_params` are for AuditMiddleware.
    """

    def __init__(self, app: ASGIApp, checks: RequestChecks) -> None:
        self.app, self.checks = app, checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with held_bytes.BODY_BYTES.open_share() as whole, held_bytes.FORM_BYTES.open_share() as form:
            await self._call(scope, receive, send, {"lines": whole, "photo": form})

    async def _call(self, scope: Scope, receive: Receive, send: Send, shares: dict[str, HeldShare]) -> None:
        request_id = choose_request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        try:
            limit = await self.checks.check(scope)
            body = LimitedBody(scope, receive, limit, shares, partial(self.checks.check_again, scope))
        except AppError as error:
            await _send_problem(scope, send, error)
            return
        started = False

        async def send_with_request_id(message: Message) -> None:
            nonlocal started
            if body.error is not None and not started:
                return  # the refusal below replaces what the route made of the incomplete body
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, body, send_with_request_id)
        except AppError:
            if started or body.error is None:
                raise
        if body.error is not None:
            body.error.__traceback__ = None  # a cycle that would keep what has arrived until the next collection
            if not started:
                await _send_problem(scope, send, body.error)


class LimitedBody:
    """The body of a request, which may have `limit` bytes. Raises TooLarge as soon as it has more.

    A client may send a body for hours. Raises Unauthenticated if the key was revoked or has expired meanwhile.

    Bodies that are held whole are counted together, since slow clients can send hundreds at once, and so are those with
    photos, whose forms are temporary files until they are read. Those with an `Idempotency-Key` are held whole.
    Raises Busy if they hold too many bytes.

    shares: by `x-body`; the body of another kind is not counted
    check_key: raises AppError if the key is not accepted any more
    error: the error that was raised, None while the body is within the limits
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        limit: int,
        shares: dict[str, HeldShare],
        check_key: Callable[[], Awaitable[None]],
    ) -> None:
        self.receive, self.limit, self.check_key, self.count = receive, limit, check_key, 0
        self.error: AppError | None = None
        kind = scope["state"].get("requirements", {}).get("x-body", "lines")
        self.share = shares.get("lines" if kind == "photo" and takes_key(scope) else kind)
        if self.share is not None:
            self.share.begin(scope)
        declared = find_header(scope, b"content-length")
        if declared.isdigit() and int(declared) > limit:
            raise self._make_error()

    async def __call__(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.request":
            try:
                await self._check(len(message.get("body", b"")))
                if self.share is not None and not message.get("more_body", False):
                    self.share.complete()
            except AppError as error:
                self.error = error
                raise
        return message

    async def _check(self, size: int) -> None:
        self.count += size
        if self.count > self.limit:
            raise self._make_error()
        if self.share is not None and self.count > FREE_BODY_BYTES:
            self.share.add(self.count - FREE_BODY_BYTES - self.share.count)
        await self.check_key()

    def _make_error(self) -> TooLarge:
        advice = "send less" if self.limit == MAX_SMALL_JSON_BYTES else "send less, or raise the limit in the settings"
        return TooLarge(f"the body may have {self.limit:,} bytes; {advice}")


async def _send_problem(scope: Scope, send: Send, error: AppError) -> None:
    request_id = scope["state"]["request_id"]
    body = json.dumps(describe_problem(error, request_id)).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id.encode()),
        (b"connection", b"close"),
    ]
    headers += [(b"www-authenticate", b"Bearer")] if error.status == 401 else []
    wait_seconds = getattr(error, "retry_after_seconds", 1)
    headers += [(b"retry-after", str(wait_seconds).encode())] if error.retryable else []
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
