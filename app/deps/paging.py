"""Lists: `limit` + opaque `next_token`."""

import base64
import binascii
import json
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.db.tables import Base
from app.deps.words import Word
from app.errors import Invalid

Row = TypeVar("Row", bound=Base)
PLACES: dict[type, TypeAdapter[Any]] = {
    str: TypeAdapter(Word),
    int: TypeAdapter(Annotated[int, Field(ge=0, lt=2**63)]),
}


def encode(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def decode(token: str, kind: type) -> Any:
    """What the rows after it are greater than. Raises Invalid."""
    try:
        return PLACES[kind].validate_json(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)), strict=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid("next_token is not one that this service gave", code="InvalidPaginationToken") from error


def page(
    session: Session,
    row: type[Row],
    key: InstrumentedAttribute[Any],
    limit: int,
    next_token: str | None,
    *where: ColumnElement[bool],
) -> tuple[list[Row], str | None]:
    """The rows after the token in order of `key`, and the token for those after them."""
    chosen = select(row).where(*where).order_by(key).limit(limit + 1)
    if next_token:
        chosen = chosen.where(key > decode(next_token, key.type.python_type))
    found = list(session.scalars(chosen))
    more = len(found) > limit
    return found[:limit], encode(getattr(found[limit - 1], key.key)) if more else None
