"""Lists: `limit` + opaque `next_token`."""

import base64
import binascii
import json
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.db.tables import Base
from app.errors import Invalid

Row = TypeVar("Row", bound=Base)


def encode(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def decode(token: str) -> Any:
    try:
        return json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
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
        chosen = chosen.where(key > decode(next_token))
    found = list(session.scalars(chosen))
    more = len(found) > limit
    return found[:limit], encode(getattr(found[limit - 1], key.key)) if more else None
