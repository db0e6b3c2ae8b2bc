"""Store the answer to a request with an `Idempotency-Key` in the transaction of its changes.

A process that dies between the commit and the answer would else leave a request that was carried out and looks as if it
was not: a repeat would be carried out again.
"""

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from fastapi import Request, Response
from fastapi.routing import APIRoute
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import StoredResponse
from app.errors import Conflict

MAX_STORED_BYTES = 2**20
KEPT_HEADERS = ("content-type", "location", "retry-after", "etag", "x-model", "x-index-generation", "x-change-number")
RESERVED, BUILT = "reserved_answer", "built_answer"
"""What the state of a request has: the answer's name, and the answer, once it is built."""


class ReservedAnswer(NamedTuple):
    """What the answer to a request is stored as.

    key_id, idempotency_key: of the row; created_at: of the reservation, by which it is told from a later one
    secret_field: the field of the answer that is not stored, or None
    """

    key_id: str
    idempotency_key: str
    created_at: float
    secret_field: str | None

    def lock_row(self, session: Session) -> StoredResponse | None:
        """Return the row; None if the reservation has ended, and another request may have taken the key."""
        is_row = (StoredResponse.key_id == self.key_id, StoredResponse.idempotency_key == self.idempotency_key)
        own = select(StoredResponse).where(*is_row, StoredResponse.created_at == self.created_at)
        return session.scalar(own.with_for_update())

    def make_values(self, status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any] | None:
        """Return the columns of an answer; None if it is not stored, since the request failed or it is too long."""
        if not 200 <= status < 300 or len(body) > MAX_STORED_BYTES:
            return None
        if self.secret_field is not None:
            body = json.dumps({n: value for n, value in json.loads(body).items() if n != self.secret_field}).encode()
        return {"status": status, "headers": {k: v for k, v in headers.items() if k in KEPT_HEADERS}, "body": body}


class AnswerRoute(APIRoute):
    """A route whose answer is built before its transaction is committed, for `store_answer`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what handles a request."""
        handle = super().get_route_handler()

        async def handle_and_keep(request: Request) -> Response:
            answer, state = await handle(request), request.scope["state"]
            if RESERVED in state:
                state[BUILT] = answer
            return answer

        return handle_and_keep


def store_answer(session: Session, request: Request) -> None:
    """Store the answer that a route has built, if the request has an `Idempotency-Key`, before the commit.

    Raises Conflict if its reservation has ended: the repeat that has taken the key is carried out instead.
    """
    state = request.scope["state"]
    reserved: ReservedAnswer | None = state.get(RESERVED)
    answer: Response | None = state.get(BUILT)
    if reserved is None:
        return
    stored = reserved.lock_row(session)
    if stored is None:
        raise make_in_progress_error()
    if answer is not None:
        values = reserved.make_values(answer.status_code, answer.headers, bytes(answer.body))
        for field, value in (values or {}).items():
            setattr(stored, field, value)


def make_in_progress_error() -> Conflict:
    """Return the error of a request whose key is reserved for another one."""
    return Conflict("a request with this Idempotency-Key is in progress; try again", code="RequestInProgress")
