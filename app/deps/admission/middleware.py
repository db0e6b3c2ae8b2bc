"""Give each request a slot when its body has arrived, and take it back when its answer begins."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.deps.admission.clients import Ticket
from app.deps.admission.gate import AdmissionGate
from app.deps.admission.work import Work, classify_work
from app.deps.caller import Caller
from app.deps.problem_response import make_problem_response
from app.errors import Busy

MAX_UNCHECKED_BYTES = 65_536
"""A body of at most so many bytes is read before its request is refused, so that the connection can stay open."""


class AdmissionMiddleware:
    """Runs after AuthMiddleware, which states the requirements of the route, and before the body is read.

    A client is who has the key. One that sends its body or reads its answer slowly holds no slot meanwhile.
    """

    def __init__(self, app: ASGIApp, gate: AdmissionGate) -> None:
        self.app, self.gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = _find_work(scope)
        if work is None:
            await self.app(scope, receive, send)
            return
        client = _find_client(scope)
        request = _AdmittedRequest(self.gate, work, client, receive, send)
        try:
            if not _has_body(scope):
                await request.enter()
            elif _is_long(scope):
                self.gate.check(work, client)
            await self.app(scope, request.receive, request.send)
        except Busy as refusal:
            request.refusal = refusal
        finally:
            request.leave()
        if request.refusal is not None and not request.is_answered:
            await asyncio.sleep(self.gate.find_refusal_delay(client))
            await make_problem_response(scope, request.refusal)(scope, receive, send)


class _AdmittedRequest:
    """The messages of one request. refusal: why it was refused; whatever the route made of it is not sent"""

    def __init__(self, gate: AdmissionGate, work: Work, client: str, receive: Receive, send: Send) -> None:
        self.gate, self.work, self.client, self._receive, self._send = gate, work, client, receive, send
        self.ticket: Ticket | None = None
        self.refusal: Busy | None = None
        self.is_answered = False

    async def enter(self) -> None:
        """Wait for a slot. Raises Busy."""
        self.ticket = await self.gate.enter(self.work, self.client)

    def leave(self) -> None:
        if self.ticket is not None:
            self.gate.leave(self.ticket)

    async def receive(self) -> Message:
        message = await self._receive()
        is_whole = message["type"] == "http.request" and not message.get("more_body", False)
        if is_whole and self.ticket is None and not self.is_answered:
            try:
                await self.enter()
            except Busy as refusal:
                self.refusal = refusal
                raise
        return message

    async def send(self, message: Message) -> None:
        if self.refusal is not None and not self.is_answered:
            return
        self.is_answered = True
        self.leave()
        await self._send(message)


def _find_work(scope: Scope) -> Work | None:
    if scope["type"] != "http":
        return None
    return classify_work(scope["method"], scope["state"].get("requirements", {}))


def _find_client(scope: Scope) -> str:
    """Return the id of the key: who sends a wrong one was refused before, and has no share."""
    caller: Caller | None = scope["state"].get("caller")
    return caller.key_id if caller else ""


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _is_long(scope: Scope) -> bool:
    declared = Headers(scope=scope).get("content-length", "")
    return not declared.isdigit() or int(declared) > MAX_UNCHECKED_BYTES
