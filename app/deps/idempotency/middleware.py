"""Answer a repeated POST with the same `Idempotency-Key` as the first one was answered, for 24 hours.

A search, or another POST that changes nothing, is carried out anew: its answer would name people who have refused
consent or were deleted since. A route declares that by `READ` in its `openapi_extra`.

The key is stored as a keyed hash: it may hold a name. Only 2xx answers are stored; a request that failed may be
repeated with its key. An answer is stored with the changes of its request, in one transaction, and once more, with all
its headers, before it is sent. If the process is killed before the commit, the key is free at once. It stays reserved
for five minutes if the process lives, or has ended by itself. If the database could not be written when the request
ended, the answer is stored, or the key freed, once it can be. A request that takes longer, or seems to because the
clock goes forward, is refused at its commit if a repeat has taken the key. A photo is enrolled in a transaction of its
own: its repeat returns the same faces. An archive or a file of vectors that is streamed to disk is compared by its
`Content-Length` only, which a chunked one does not have.

An answer that names somebody who was erased since is erased too, and a repeat is answered 409 `AnswerErased`. So is a
repeat of a request to a collection that was deleted since, also if another one has its name.

An answer that holds a secret is stored without it, and a repeat is answered 409 `SecretNotStored`: a route declares the
field of the secret as `x-secret` in its `openapi_extra`.
"""

import hashlib
import json
import re
from typing import Any

from anyio.to_thread import run_sync
from fastapi.responses import Response
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.db.session import writing
from app.db.tables import ERASED_STATUS, RESERVATION_SECONDS, Collection, StoredResponse, now
from app.deps.idempotency.late_answers import LateAnswers
from app.deps.idempotency.stored_answers import MAX_STORED_BYTES, RESERVED, ReservedAnswer, make_in_progress_error
from app.deps.problem_response import make_problem_response
from app.errors import AppError, Busy, Conflict, Invalid
from app.resources import Resources
from app.storage.audit_log.spool import was_killed

MAX_KEY_CHARACTERS = 255
MESSAGE_BYTES = 65_536
COLLECTION_IN_PATH = re.compile(r"/v1/collections/([A-Za-z0-9_.-]{1,255})(?=[/:]|$)")


def takes_key(scope: Scope) -> bool:
    """Return whether a request has an `Idempotency-Key` that counts: its body is held in memory, if it is a photo."""
    state = scope.get("state", {})
    if scope["method"] != "POST" or state.get("is_read") or state.get("caller") is None:
        return False
    return "idempotency-key" in Headers(scope=scope)


class IdempotencyMiddleware:
    """Runs after AuthMiddleware, which sets the caller and limits the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._late = LateAnswers(lambda *late: _store_response(*late))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not takes_key(scope):
            await self.app(scope, receive, send)
            return
        key, caller = Headers(scope=scope)["idempotency-key"], scope["state"]["caller"]
        resources: Resources = scope["state"]["resources"]
        secret_field: str | None = scope["state"].get("secret_field")
        reserved: ReservedAnswer | None = None
        try:
            key_hash = _hash_key(resources, caller.key_id, key)
            fingerprint, receive = await _compute_fingerprint(scope, receive)
            reserved = ReservedAnswer(caller.key_id, key_hash, now(), secret_field)
            reservation = StoredResponse(
                key_id=reserved.key_id,
                idempotency_key=reserved.idempotency_key,
                fingerprint=fingerprint,
                collection=_find_collection(scope["path"]),
                process=scope["state"]["audit_spool"].process,
                created_at=reserved.created_at,
            )
            earlier = await run_sync(_reserve_key, resources, reservation, secret_field)
        except AppError as error:
            if isinstance(error, Busy) and reserved is not None:
                self._late.add(resources, reserved, None)  # the connection may have been lost after the commit
            await make_problem_response(scope, error)(scope, receive, send)
            return
        if earlier is not None:
            await earlier(scope, receive, send)
            return
        scope["state"][RESERVED] = reserved
        recorder = _ResponseRecorder(resources, reserved, self._late, send)
        try:
            await self.app(scope, receive, recorder.send)
        finally:
            await recorder.close()


class _ResponseRecorder:
    """Stores the answer before its last part is sent, so that a client that received it can receive it again."""

    def __init__(self, resources: Resources, reserved: ReservedAnswer, late: LateAnswers, send: Send) -> None:
        self.resources, self.reserved, self.late, self._send = resources, reserved, late, send
        self.status, self.headers, self.body = 0, Headers(), b""
        self.is_closed = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], Headers(raw=message["headers"])
        elif message["type"] == "http.response.body" and len(self.body) <= MAX_STORED_BYTES:
            self.body += message.get("body", b"")
            if not message.get("more_body"):
                await self.close()
        await self._send(message)

    async def close(self) -> None:
        """Store the answer, or free the key if the request failed. A second call does nothing."""
        if not self.is_closed:
            self.is_closed = True
            values = self.reserved.make_values(self.status, self.headers, self.body)
            try:
                await run_sync(_store_response, self.resources, self.reserved, values)
            except Busy:  # what was stored with the changes stays, or the key stays reserved until then
                self.late.add(self.resources, self.reserved, values)


def _hash_key(resources: Resources, caller: str, key: str) -> str:
    """Return what stands for a caller's Idempotency-Key. Raises Invalid if it is malformed."""
    if not 0 < len(key) <= MAX_KEY_CHARACTERS or not key.isprintable():
        raise Invalid(f"Idempotency-Key must have 1 to {MAX_KEY_CHARACTERS} printable characters")
    return resources.installation_key.hash_text("idempotency key", caller, key)


async def _compute_fingerprint(scope: Scope, receive: Receive) -> tuple[str, Receive]:
    """Return a hash of method, path, query, content type and body, and a `receive` that yields the body again.

    Raises Invalid if the client went away before its body was complete: its part would be another request, for which
    the repeat is refused that comes meanwhile.
    """
    digest = hashlib.sha256(f"{scope['method']} {scope['path']}?".encode() + scope["query_string"])
    media_type = Headers(scope=scope).get("content-type", "").partition(";")[0]  # a form's boundary may be another one
    digest.update(f"\n{media_type}\n".encode())
    if scope["state"].get("requirements", {}).get("x-body") == "archive":
        digest.update(Headers(scope=scope).get("content-length", "").encode())
        return digest.hexdigest(), receive
    body = bytearray()
    while (message := await receive())["type"] == "http.request":
        digest.update(message.get("body", b""))
        body += message.get("body", b"")
        if not message.get("more_body"):
            return digest.hexdigest(), _repeat_body(body, receive)
    raise Invalid("the body ended before it was complete", code="InvalidRequest")


def _repeat_body(body: bytearray, receive: Receive) -> Receive:
    """Return a `receive` that yields this body, then what comes after it. Each of its messages has little to parse."""
    starts = iter(range(0, max(1, len(body)), MESSAGE_BYTES))

    async def receive_again() -> Message:
        start = next(starts, None)
        if start is None:
            return await receive()
        end = start + MESSAGE_BYTES
        return {"type": "http.request", "body": bytes(body[start:end]), "more_body": end < len(body)}

    return receive_again


def _find_collection(path: str) -> str | None:
    """Return the collection that a path names, if it may be one's name."""
    named = COLLECTION_IN_PATH.match(path)
    return named.group(1) if named else None


def _reserve_key(resources: Resources, reservation: StoredResponse, secret_field: str | None) -> Response | None:
    """Reserve the key, or return the answer of an earlier request.

    Raises Conflict if that request is not answered yet, or its answer held a secret or was erased; Invalid if the key
    was sent with another one.
    """
    key, fingerprint = reservation.idempotency_key, reservation.fingerprint
    try:
        with writing(resources.database) as session:
            stored = session.get(StoredResponse, (reservation.key_id, key), with_for_update=True)
            if stored is None:  # if two requests come at once, both insert, and one of them fails
                session.add(reservation)
                return None
            if stored.status is None and _is_free(resources, stored):
                stored.fingerprint, stored.created_at = fingerprint, reservation.created_at
                stored.collection, stored.process = reservation.collection, reservation.process
                return None
            is_of_deleted_collection = stored.collection is not None and _was_deleted(session, stored)
    except IntegrityError as error:
        raise make_in_progress_error() from error
    if stored.fingerprint != fingerprint:
        raise Invalid("this Idempotency-Key was sent with another request", code="IdempotencyKeyReused")
    if stored.status is None:
        raise make_in_progress_error()
    if stored.status == ERASED_STATUS or is_of_deleted_collection:
        raise Conflict(
            "this request was carried out; its answer named a face or a person erased since, or was about a collection "
            "that was deleted, and is not repeated",
            code="AnswerErased",
        )
    if secret_field is not None:
        raise Conflict(
            "this request was carried out; its answer held a secret, which is not stored. If you have not received it, "
            "revoke the key `key_id` and make another one with a new Idempotency-Key",
            code="SecretNotStored",
            key_id=json.loads(stored.body)["id"],
        )
    return Response(stored.body, stored.status, stored.headers | {"Idempotent-Replayed": "true"})


def _is_free(resources: Resources, stored: StoredResponse) -> bool:
    """Whether the request that reserved the key will not be answered any more."""
    if stored.created_at < now() - RESERVATION_SECONDS:
        return True
    return stored.process is not None and was_killed(resources.audit, stored.process)


def _was_deleted(session: Session, stored: StoredResponse) -> bool:
    """Whether the collection of a request is not there any more; one of the same name may have been made since."""
    collection = session.get(Collection, stored.collection)
    return collection is None or collection.is_deleted or collection.created_at > stored.created_at


def _store_response(resources: Resources, reserved: ReservedAnswer, values: dict[str, Any] | None) -> None:
    """Store an answer, or free the key of a request that failed before its changes were committed."""
    with writing(resources.database) as session:
        stored = reserved.lock_row(session)
        if stored is None or stored.status == ERASED_STATUS:
            return
        if values is None and stored.status is None:
            session.delete(stored)
        for field, value in (values or {}).items():
            setattr(stored, field, value)
