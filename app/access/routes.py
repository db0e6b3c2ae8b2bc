"""Create, list, rotate and revoke keys. Only administrators may do so."""

from typing import Annotated

from fastapi import APIRouter, Path
from sqlalchemy import event
from sqlalchemy.orm import Session

from app.access import keys
from app.access.schemas import KeyIn, KeyOut, KeysOut, NewKeyOut, RotateIn
from app.db import examples
from app.db.field_types import Word
from app.db.tables import Key
from app.deps import CallerDep, Limit, NextToken, ReadDep, ResourcesDep, WriteDep
from app.deps.audit import audit_as
from app.deps.idempotency.stored_answers import AnswerRoute
from app.deps.paging import read_page
from app.deps.problems import declare_problems
from app.deps.roles import ADMIN
from app.deps.scopes import KEY, ROWS
from app.resources import Resources

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=AnswerRoute)
SHOWS_SECRET = {"x-secret": "key", **declare_problems((409, "SecretNotStored"))}
REVOKES = declare_problems((409, "ResourceInUse"))
ROTATES = declare_problems((409, "SecretNotStored"), (409, "ResourceInUse"))
KeyId = Annotated[Word, Path(description="a key's id, not its secret", examples=[examples.KEY])]


@router.post(
    "", status_code=201, summary="Make a key", openapi_extra={**ADMIN, **ROWS, **SHOWS_SECRET} | audit_as("key.create")
)
def create_key(body: KeyIn, session: WriteDep, caller: CallerDep) -> NewKeyOut:
    """The answer holds the secret of the key. It is not stored and cannot be shown again: a repeat with the same
    `Idempotency-Key` is answered 409 `SecretNotStored`, with the `key_id`.

    A key that is bound to collections can only make keys that are bound to some of them, and one that expires only keys
    that expire no later. `expires_at` must lie in the future.
    """
    keys.check_grant(caller, body.collections, body.expires_at)
    key, secret = keys.create_key(session, body.role, body.name, body.collections, body.expires_at)
    return NewKeyOut(**KeyOut.model_validate(key).model_dump(), key=secret)


@router.get("", summary="List keys", openapi_extra=ADMIN | ROWS)
def list_keys(session: ReadDep, limit: Limit = 100, next_token: NextToken = None) -> KeysOut:
    """The oldest keys come first. Revoked keys are listed too; secrets never are. A bound key sees the keys that are
    bound to some of its collections."""
    rows, token = read_page(session, Key, Key.id, limit, next_token)
    return KeysOut(keys=[KeyOut.model_validate(r) for r in rows], next_token=token)


@router.post(
    "/{key_id}:rotate",
    summary="Give a key another secret",
    openapi_extra={**ADMIN, **KEY, **SHOWS_SECRET, **ROTATES} | audit_as("key.rotate"),
)
def rotate_key(
    key_id: KeyId, session: WriteDep, caller: CallerDep, resources: ResourcesDep, body: RotateIn | None = None
) -> NewKeyOut:
    """The key keeps its id, role, name, collections and expiry. The answer holds its new secret, which cannot be shown
    again; the secret that it had is accepted for `overlap_seconds` more, and no older one. 409 if the key is revoked or
    has expired."""
    overlap_seconds = (body or RotateIn()).overlap_seconds
    key, secret = keys.rotate_key(session, key_id, overlap_seconds, caller)
    _notify_after_commit(session, resources)
    return NewKeyOut(**KeyOut.model_validate(key).model_dump(), key=secret)


@router.delete(
    "/{key_id}",
    status_code=204,
    summary="Revoke a key",
    openapi_extra={**ADMIN, **KEY, **REVOKES} | audit_as("key.revoke"),
)
def revoke_key(key_id: KeyId, session: WriteDep, caller: CallerDep, resources: ResourcesDep) -> None:
    """The key is refused from now on; other API processes may accept it for one second more. 409 for the last admin's
    key that is bound to no collection and never expires: make another one first."""
    keys.revoke_key(session, key_id, caller)
    _notify_after_commit(session, resources)


def _notify_after_commit(session: Session, resources: Resources) -> None:
    """Have every process forget the secrets that it has accepted."""
    event.listen(session, "after_commit", lambda _: resources.notifier.notify("keys"), once=True)
