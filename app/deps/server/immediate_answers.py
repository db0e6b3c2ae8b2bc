"""Answer a request in one pass, before all layers, if nothing about it is unusual and nothing has to be waited for.

What the layers promise is done here by the functions that they call themselves. Whatever they would refuse, explain or
wait for goes on to them untouched, and nothing has been counted by then.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.deps.admission.gate import AdmissionGate
from app.deps.admission.middleware import MAX_UNCHECKED_BYTES
from app.deps.admission.work import Work
from app.deps.caller import Caller
from app.deps.server.json_limits import is_surely_accepted
from app.deps.server.request_headers import limit_request_id
from app.deps.server.security_headers import SECURITY_HEADERS
from app.deps.server.whole_answers import Headers, find_send_whole

log = logging.getLogger("likeness.api")

MAX_BATCH_REQUESTS = 16
"""So few that FAISS compares each with the cells by itself, and that no other request waits for long."""
SINGLE_BATCHES = 4
"""After so many batches of one request, requests are taken to come alone."""
MAX_ARRIVAL_SECONDS = 0.2
"""Of the body of a request that is answered at once. The layers look its key up again."""
UNUSUAL_HEADERS = frozenset((b"expect", b"idempotency-key", b"transfer-encoding"))
SINGLE_HEADERS = frozenset((b"authorization", b"content-length", b"content-type", b"x-api-key", b"x-request-id"))


RequestHeaders = Mapping[bytes, bytes]
"""name -> value, of the headers of a request that it may have once."""


class ImmediateAnswer(NamedTuple):
    """An answer with status 200. after: what is done once it has been sent, None: nothing"""

    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    after: Callable[[], None] | None = None


class ReadRequest(NamedTuple):
    """A request to a collection whose body has arrived."""

    scope: Scope
    collection: str
    body: bytes


class ImmediateRoute(NamedTuple):
    """A route of a collection whose requests may be answered at once.

    prefix, suffix: what stands before and after the collection in its path; template: its path
    requirements: its `openapi_extra`; work: its class; content_type: that its body must have
    answer: returns the answers to requests that have come together, None for those that the layers must answer
    """

    prefix: str
    suffix: str
    template: str
    requirements: Mapping[str, Any]
    work: Work
    content_type: bytes
    answer: Callable[[Sequence[ReadRequest]], list[ImmediateAnswer | None]]


class Checks(Protocol):
    """What is checked and counted of a request: see `app.access.request_checks.RequestChecks`."""

    def find_known_caller(
        self, scope: Scope, headers: RequestHeaders, requirements: Mapping[str, Any], collection: str
    ) -> Caller | None: ...
    def count_at_once(self, requests: Sequence[tuple[Scope, Caller]]) -> None: ...
    def max_body_bytes(self, requirements: Mapping[str, Any]) -> int: ...


class Steps(NamedTuple):
    """What the layers do for a request. record: keeps entries of the audit log; measure: counts it in the metrics"""

    checks: Checks
    gate: AdmissionGate
    record: Callable[[Mapping[str, Any], Sequence[tuple[Scope, Caller, str]], int], None]
    measure: Callable[[str, str, str, float], None]


class _Received(NamedTuple):
    """A request whose caller may send it."""

    request: ReadRequest
    caller: Caller


class _Waiting(NamedTuple):
    """A request that waits for others of the same turn. answered: gets its answer"""

    received: _Received
    answered: asyncio.Future[ImmediateAnswer | None]


class ImmediateAnswersMiddleware:
    """Stands outside of all layers, those that add security headers and close connections included.

    Requests that turns of the event loop read one after the other are answered together, which takes half the time for
    each. Of those that are too many for one batch, each client has one answered in turn, and other requests go on
    meanwhile. One that comes alone is answered where it is read.
    """

    def __init__(self, app: ASGIApp, route: ImmediateRoute, steps: Steps) -> None:
        self.app, self.route, self.steps = app, route, steps
        self._waiting: dict[str, deque[_Waiting]] = {}  # by key: the next is the one last served the longest ago
        self._is_scheduled = False
        self._come_together = False  # whether what is read now waits for others
        self._single_batches = 0  # of one request, one after the other
        self._max_bytes = min(MAX_UNCHECKED_BYTES, steps.checks.max_body_bytes(route.requirements))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        collection = self._find_collection(scope)
        headers = None if collection is None else self._read_usual(scope["headers"])
        if collection is None or headers is None:
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        caller = self.steps.checks.find_known_caller(scope, headers, self.route.requirements, collection)
        if caller is None:
            await self.app(scope, receive, send)
            return
        message = await receive()
        is_late = time.perf_counter() - started > MAX_ARRIVAL_SECONDS  # its key may have been revoked meanwhile
        answer = None if is_late else await self._answer(scope, collection, caller, message)
        if answer is None:
            await self.app(scope, _make_receive(message, receive), send)
            return
        try:
            answer_headers, send_whole = _make_headers(headers, answer), find_send_whole(scope)
            if send_whole is None or not send_whole(answer_headers, answer.body):
                await send({"type": "http.response.start", "status": 200, "headers": answer_headers})
                await send({"type": "http.response.body", "body": answer.body})
        finally:
            self.steps.measure("POST", self.route.template, "200", time.perf_counter() - started)
        if answer.after is not None:
            await run_in_threadpool(answer.after)

    def _find_collection(self, scope: Scope) -> str | None:
        """Return the collection that a request to the route names; None for any other request."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope.get("root_path"):
            return None
        path: str = scope["path"]
        prefix, suffix = self.route.prefix, self.route.suffix
        if not path.endswith(suffix) or not path.startswith(prefix):
            return None
        collection = path[len(prefix) : -len(suffix)]
        return collection if collection and "/" not in collection else None

    def _read_usual(self, headers: Headers) -> RequestHeaders | None:
        """Return the headers; None if the body is of another type or long, or if a header asks for something else."""
        known = dict(headers)
        if not UNUSUAL_HEADERS.isdisjoint(known):
            return None
        if len(known) < len(headers):
            names = [name for name, _ in headers]
            if any(names.count(name) > 1 for name in SINGLE_HEADERS):
                return None
        length = known.get(b"content-length", b"")
        is_usual = known.get(b"content-type") == self.route.content_type and length.isdigit()
        return known if is_usual and 0 < int(length) <= self._max_bytes else None

    async def _answer(self, scope: Scope, collection: str, caller: Caller, message: Message) -> ImmediateAnswer | None:
        """Answer a request whose whole body is this message. Returns None if the layers must answer it."""
        if message["type"] != "http.request" or message.get("more_body", False):
            return None
        request = ReadRequest(scope, collection, message.get("body", b""))
        if not is_surely_accepted(request.body) or not self.steps.gate.has_free_slot(caller.key_id):
            return None
        received, loop = _Received(request, caller), asyncio.get_running_loop()
        if not self._come_together:
            self._come_together = True
            loop.call_soon(self._end_turn)  # the next turn: what was read in this one has run by then
            return self._answer_all([received])[0]
        waiting = _Waiting(received, loop.create_future())
        self._waiting.setdefault(caller.key_id, deque()).append(waiting)
        self._schedule()
        return await waiting.answered

    def _end_turn(self) -> None:
        """After a turn whose first request was answered alone, answer the next one alone too if no other came."""
        self._come_together = bool(self._waiting)
        self._single_batches = 0

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._answer_waiting, 0)

    def _answer_waiting(self, known: int) -> None:
        """Answer requests, those that are too many in the next turns, unless the last turn has read more of them.

        What came while a batch was answered is read in the turn after it: without it, twice as many batches would have
        half as many requests. known: how many waited before the last turn
        """
        count = sum(map(len, self._waiting.values()))
        if known < count < MAX_BATCH_REQUESTS:
            asyncio.get_running_loop().call_soon(self._answer_waiting, count)
            return
        self._is_scheduled = False
        batch = self._take_batch()
        self._single_batches = self._single_batches + 1 if len(batch) == 1 else 0
        self._come_together = self._single_batches < SINGLE_BATCHES
        self._answer_batch(batch)
        if self._waiting:
            self._schedule()

    def _answer_batch(self, batch: Sequence[_Waiting]) -> None:
        open_requests = [waiting for waiting in batch if not waiting.answered.done()]
        try:
            answers = self._answer_all([waiting.received for waiting in batch])
        except Exception as error:
            for waiting in open_requests:
                waiting.answered.set_exception(error)
            return
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.answered.done():
                waiting.answered.set_result(answer)

    def _take_batch(self) -> list[_Waiting]:
        """Take one request of each client in turn."""
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < MAX_BATCH_REQUESTS:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            batch.append(queue.popleft())
            if queue:
                self._waiting[client] = queue
        return batch

    def _answer_all(self, received: Sequence[_Received]) -> list[ImmediateAnswer | None]:
        """Answer requests, and count and record those that are answered."""
        started = time.monotonic()
        try:
            answers = self.route.answer([one.request for one in received])
        except Exception:
            log.exception("request.not_answered_at_once path=%s", self.route.template)
            return [None] * len(received)
        seconds = (time.monotonic() - started) / len(received)
        self._count([one for one, answer in zip(received, answers, strict=True) if answer is not None], seconds)
        return answers

    def _count(self, answered: Sequence[_Received], seconds: float) -> None:
        """Count and record requests. seconds: for which each held a slot"""
        if not answered:
            return
        counts: dict[str, int] = {}
        for _, caller in answered:
            counts[caller.key_id] = counts.get(caller.key_id, 0) + 1
        for key_id, count in counts.items():
            self.steps.gate.count_at_once(self.route.work, seconds, key_id, count)
        self.steps.checks.count_at_once([(request.scope, caller) for request, caller in answered])
        audited = [(request.scope, caller, request.collection) for request, caller in answered]
        self.steps.record(self.route.requirements, audited, 200)


def _make_headers(headers: RequestHeaders, answer: ImmediateAnswer) -> Headers:
    """Return the headers of an answer. headers: of the request"""
    request_id = limit_request_id(headers.get(b"x-request-id", b"").decode("latin-1"))
    return [
        *answer.headers,
        (b"content-length", str(len(answer.body)).encode()),
        (b"content-type", b"application/json"),
        (b"x-request-id", request_id.encode()),
        *SECURITY_HEADERS,
    ]


def _make_receive(first: Message, receive: Receive) -> Receive:
    """Return a `receive` that yields this message again, and then what follows."""
    messages = [first]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again
