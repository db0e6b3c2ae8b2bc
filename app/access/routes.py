"""Keys over HTTP: administrators only."""

from typing import Annotated

from fastapi import APIRouter, Path

from app.access import keys
from app.access.schemas import KeyIn, KeyOut, KeysOut, NewKeyOut
from app.db import examples
from app.db.field_types import Word
from app.db.tables import Key
from app.deps import Limit, NextToken, ReadDep, WriteDep
from app.deps.paging import page
from app.deps.roles import ADMIN

router = APIRouter(prefix="/v1/keys", tags=["keys"])
KeyId = Annotated[Word, Path(description="a key's id, not its secret", examples=[examples.KEY])]


@router.post("", status_code=201, summary="Make a key", openapi_extra=ADMIN)
def create_key(body: KeyIn, session: WriteDep) -> NewKeyOut:
    """The secret is in this answer and nowhere else; keep it."""
    key, secret = keys.create(session, body.role, body.name, body.collections)
    return NewKeyOut(**KeyOut.model_validate(key).model_dump(), key=secret)


@router.get("", summary="List keys", openapi_extra=ADMIN)
def list_keys(session: ReadDep, limit: Limit = 100, next_token: NextToken = None) -> KeysOut:
    """Newest last, revoked ones too; never the secrets."""
    rows, token = page(session, Key, Key.id, limit, next_token)
    return KeysOut(keys=[KeyOut.model_validate(r) for r in rows], next_token=token)


@router.delete("/{key_id}", status_code=204, summary="Revoke a key", openapi_extra=ADMIN)
def revoke_key(key_id: KeyId, session: WriteDep) -> None:
    """It is refused from now on; at most five seconds later in other API processes."""
    keys.revoke(session, key_id)
