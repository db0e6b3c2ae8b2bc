"""Read lists page by page, with a `limit` and an opaque `next_token`."""

import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query
from pydantic import Field, TypeAdapter
from sqlalchemy import JSON, ColumnElement, Text, cast, func, literal, select
from sqlalchemy.orm import InstrumentedAttribute, Session, defer

from app.db.field_types import Word
from app.db.statement_limits import StatementTooSlow, limit_statements, wait_for_turn
from app.db.tables import Base
from app.db.tables.base import MetadataColumn
from app.errors import Invalid

Row = TypeVar("Row", bound=Base)
MAX_PAGE_BYTES = 4 * 2**20
"""Of the JSON values of a page's rows: metadata may have 64 KiB, and a thousand rows of them would take 59 MB."""
MAX_SCAN_SECONDS = 10.0
"""For which the rows of a list are compared with filters that have no index."""
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
    without: Sequence[InstrumentedAttribute[Any]] = (),
    unread: Sequence[InstrumentedAttribute[Any]] = (),
    measured_rows: int | None = None,
) -> tuple[list[Row], str | None]:
    """Return up to `limit` rows after the token, in the order of `key`, and the token of the next page or None.

    A page ends early with the row whose JSON values bring it to MAX_PAGE_BYTES.

    order: "oldest" is ascending, "newest" descending
    without: columns that are not read; unread: nor are these, but the page is as short as if they were
    measured_rows: how many are measured at a time, where each may have megabytes; None: all
    Raises Invalid for a token of another list or order.
    """
    newest = order == "newest"
    sizes = select(key, _measure_json(row, without)).where(*where).order_by(key.desc() if newest else key)
    if next_token:
        last = decode_token(next_token, key.type.python_type, newest)
        sizes = sizes.where(key < last if newest else key > last)
    keys, page_bytes = list[Any](), 0
    with session.execute(sizes.limit(limit + 1), execution_options={"yield_per": measured_rows}) as measured:
        for value, size in measured:
            if len(keys) == limit or page_bytes >= MAX_PAGE_BYTES:
                token = encode_token({"before": keys[-1]} if newest else keys[-1])
                break
            keys.append(value)
            page_bytes += size
        else:
            token = None
    # with the token too, SQLite would read all rows after it
    chosen = select(row).where(*where, key.in_(keys)).order_by(key.desc() if newest else key)
    return list(session.scalars(chosen.options(*map(defer, (*without, *unread))))), token


@contextmanager
def limit_scan(session: Session, *filters: object) -> Iterator[None]:
    """Read a page by filters that have no index of their own: as many such pages at once as there are cores.

    Where few rows match, the whole list is read for a page. Without any of the filters, nothing is limited.

    session: as of `wait_for_turn`
    Raises Busy if too many such pages are read; Invalid if it takes too long.
    """
    if not any(filters):
        yield
        return
    try:
        with wait_for_turn(session), limit_statements(session, MAX_SCAN_SECONDS):
            yield
    except StatementTooSlow as error:
        raise Invalid(
            f"it takes more than {MAX_SCAN_SECONDS:.0f} seconds to look for these entries in the whole list: add "
            "another filter, or read the list without one"
        ) from error


def _measure_json(row: type[Base], without: Sequence[InstrumentedAttribute[Any]]) -> ColumnElement[int]:
    """Return the characters of a row's JSON values, less those that are not read."""
    left_out = {attribute.key for attribute in without}
    columns = (c for c in row.__table__.columns if isinstance(c.type, JSON | MetadataColumn) and c.key not in left_out)
    return sum((func.coalesce(func.length(cast(c, Text)), 0) for c in columns), literal(0))
