"""Long lists of ids in statements, as one parameter.

With a parameter for each id, every length of a list is another statement. A connection to SQLite keeps the last
statements that it has prepared, and one with 10,000 parameters takes more than a megabyte.
"""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, BigInteger, BindParameter, Select, String, Text, TypeDecorator, bindparam, func, select
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine


class _JsonList(TypeDecorator[list[Any]]):
    """A list that is sent as JSON."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[Any] | None, dialect: Any) -> str:
        return json.dumps(value)


def select_ids(session: Session, ids: Sequence[int] | Sequence[str]) -> Select[tuple[Any]]:
    """Select these numbers or texts, for `column.in_(...)`."""
    element: type[TypeEngine[Any]] = String if ids and isinstance(ids[0], str) else BigInteger
    return _select_elements(session.get_bind().dialect.name, bindparam(None, list(ids)), element)


def select_ids_parameter(dialect: str, name: str) -> Select[tuple[Any]]:
    """Select the numbers of a parameter, a list, of a statement that is made once. dialect: as SQLAlchemy names it"""
    return _select_elements(dialect, bindparam(name), BigInteger)


def _select_elements(dialect: str, parameter: BindParameter[Any], element: type[TypeEngine[Any]]) -> Select[tuple[Any]]:
    if dialect == "sqlite":
        parameter.type = _JsonList()
        return select(func.json_each(parameter).table_valued("value").c.value)
    parameter.type = ARRAY(element)
    return select(func.unnest(parameter).column_valued())
