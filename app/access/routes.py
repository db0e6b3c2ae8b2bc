"""Create, list and revoke keys. Only administrators may do so."""

from typing import Annotated

from fastapi import APIRouter, Path

from app.access import keys
from app.access.schemas import KeyIn, KeyOut, KeysOut, NewKeyOut
from app.db import examples
from app.db.field_types import Word
from app.db.tables import Key
from app.deps import Limit, NextToken, ReadDep, WriteDep
from app.deps.paging import read_page
from app.deps.roles import ADMIN

router = APIRouter(prefix="/v1/keys", tags=["keys"])
KeyId = Annotated[Word, Path(description="a key's id, not its secret", examples=[examples.KEY])]


@router.post("", status_code=201, summary="Make a key", openapi_extra=ADMIN)
def create_key(body: KeyIn, session: WriteDep) -> NewKeyOut:
    """The answer holds the secret of the key. It is not stored and cannot be shown again."""
    key, secret = keys.create_key(session, body.role, body.name, body.collections)
    return NewKeyOut(**KeyOut.model_validate(key).model_dump(), key=secret)


@router.get("", summary="List keys", openapi_extra=ADMIN)
def list_keys(session: ReadDep, limit: Limit = 100, next_token: NextToken = None) -> KeysOut:
    """The oldest keys come first. Revoked keys are listed too; secrets never are."""
    rows, token = read_page(session, Key, Key.id, limit, next_token)
    return KeysOut(keys=[KeyOut.model_validate(r) for r in rows], next_token=token)


@router.delete("/{key_id}", status_code=204, summary="Revoke a key", openapi_extra=ADMIN)
def revoke_key(key_id: KeyId, session: WriteDep) -> None:
    """The key is refused from now on. Other API processes may accept it for up to five seconds more."""
    keys.revoke_key(session, key_id)
