"""Read lists page by page, with a `limit` and an opaque `next_token`."""

import base64
import binascii
import json
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query
from pydantic import Field, TypeAdapter
from pydantic_core import to_json
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.orm.interfaces import ORMOption

from app.db.field_types import Word
from app.db.tables import Base
from app.errors import Invalid

Row = TypeVar("Row", bound=Base)
MAX_PAGE_BYTES = 4 * 2**20
"""Of the JSON values of a page's rows: metadata may have 64 KiB, and a thousand rows of them would take 59 MB."""
ROWS_PER_FETCH = 100
KEY_TYPES: dict[type, TypeAdapter[Any]] = {
    str: TypeAdapter(Word),
    int: TypeAdapter(Annotated[int, Field(ge=0, lt=2**63)]),
}


Order = Annotated[
    Literal["oldest", "newest"],
    Query(description="which entries come first; a `next_token` is valid for one order only"),
]


def encode_token(value: object) -> str:
    """Encode the key of a page's last row."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def decode_token(token: str, kind: type, newest_first: bool = False) -> Any:
    """Return the key of the last row of the previous page. Raises Invalid, also if the token is of the other order."""
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        if newest_first:
            text = json.dumps(json.loads(text)["before"]).encode()
        return KEY_TYPES[kind].validate_json(text, strict=True)
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Invalid(
            "next_token was not made by this service for this list and order", code="InvalidPaginationToken"
        ) from error


def read_page(
    session: Session,
    row: type[Row],
    key: InstrumentedAttribute[Any],
    limit: int,
    next_token: str | None,
    *where: ColumnElement[bool],
    order: Literal["oldest", "newest"] = "oldest",
    options: Sequence[ORMOption] = (),
) -> tuple[list[Row], str | None]:
    """Return up to `limit` rows after the token, in the order of `key`, and the token of the next page or None.

    A page ends early with the row whose JSON values bring it to MAX_PAGE_BYTES.

    order: "oldest" is ascending, "newest" descending; options: loader options such as `defer`
    Raises Invalid for a token of another list or order.
    """
    newest = order == "newest"
    chosen = select(row).where(*where).order_by(key.desc() if newest else key).limit(limit + 1).options(*options)
    if next_token:
        last = decode_token(next_token, key.type.python_type, newest)
        chosen = chosen.where(key < last if newest else key > last)
    rows, page_bytes = list[Row](), 0
    with closing(session.scalars(chosen, execution_options={"yield_per": ROWS_PER_FETCH})) as found:
        for one in found:
            if len(rows) == limit or page_bytes >= MAX_PAGE_BYTES:
                last = getattr(rows[-1], key.key)
                return rows, encode_token({"before": last} if newest else last)
            rows.append(one)
            page_bytes += _measure_json(one)
    return rows, None


def _measure_json(row: Base) -> int:
    """Return the bytes of the JSON values of a row that are loaded."""
    return sum(len(to_json(value)) for value in vars(row).values() if value and isinstance(value, dict | list))
