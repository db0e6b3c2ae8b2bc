"""Lists: `limit` + opaque `next_token`."""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query
from pydantic import Field, TypeAdapter
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.orm.interfaces import ORMOption

from app.db.field_types import Word
from app.db.tables import Base
from app.errors import Invalid

Row = TypeVar("Row", bound=Base)
PLACES: dict[type, TypeAdapter[Any]] = {
    str: TypeAdapter(Word),
    int: TypeAdapter(Annotated[int, Field(ge=0, lt=2**63)]),
}


Order = Annotated[
    Literal["oldest", "newest"], Query(description="which come first; a `next_token` is for the order that it came of")
]


def encode(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def decode(token: str, kind: type, newest_first: bool = False) -> Any:
    """The key of the last row of the page before. Raises Invalid, also where the token came of the other order."""
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        if newest_first:
            text = json.dumps(json.loads(text)["before"]).encode()
        return PLACES[kind].validate_json(text, strict=True)
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Invalid(
            "next_token is not one that this service gave for this list and order", code="InvalidPaginationToken"
        ) from error


def page(
    session: Session,
    row: type[Row],
    key: InstrumentedAttribute[Any],
    limit: int,
    next_token: str | None,
    *where: ColumnElement[bool],
    order: Literal["oldest", "newest"] = "oldest",
    options: Sequence[ORMOption] = (),
) -> tuple[list[Row], str | None]:
    """The rows after the token in order of `key`, and the token for those after them.

    order: "oldest" is ascending, "newest" descending. options: loader options, as `defer`.
    Raises Invalid for a token that is not of this list and order.
    """
    newest = order == "newest"
    chosen = select(row).where(*where).order_by(key.desc() if newest else key).limit(limit + 1).options(*options)
    if next_token:
        last = decode(next_token, key.type.python_type, newest)
        chosen = chosen.where(key < last if newest else key > last)
    rows = list(session.scalars(chosen))
    if len(rows) <= limit:
        return rows, None
    last = getattr(rows[limit - 1], key.key)
    return rows[:limit], encode({"before": last} if newest else last)
