"""Check the values of a snapshot's rows by the types of their columns, in one pass of SQLite over each table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    Integer,
    LargeBinary,
    Select,
    String,
    Table,
    cast,
    func,
    literal,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.orm import Session

from app.db.field_types import MAX_INTEGER
from app.db.tables import Base

MAX_NUMBER = 2**53 - 1
"""Of a row or a change: numbers beyond it do not survive JSON, and leave no room for those to come."""
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Of the years 1 to 9999, in seconds since 1970."""
MAX_FLOAT = 1.7976931348623157e308


class AlteredRow(Exception):
    """A row that the service would not write."""

    def __init__(self, column: Column[Any], key: Any, expected: str) -> None:
        named = ", ".join(str(part)[:64] for part in key)
        super().__init__(f"{column.name} of the row ({named}) of {column.table.name} is not {expected}")


@dataclass(frozen=True, eq=False)
class ValueCheck:
    """What the values of one table have to be.

    find_bad: the statement that finds out, in one pass over the table, whether a value is not as it has to be
    rules: of each column the values that are not, and what they have to be
    """

    find_bad: Select[Any]
    rules: Sequence[tuple[Column[Any], ColumnElement[bool], str]]

    def run(self, session: Session) -> None:
        if session.execute(self.find_bad).first() is not None:
            for column, is_bad, expected in self.rules:
                refuse_first(session, column, is_bad, expected)


@cache
def make_value_checks() -> list[ValueCheck]:
    """Return the checks of all tables, made once in a process: to make the statements takes a tenth of a second."""
    checks = []
    for mapper in Base.registry.mappers:
        table = Base.metadata.tables[mapper.class_.__tablename__]
        rules = [_make_rule(column, _is_list(mapper, column)) for column in table.columns]
        is_bad = [column.is_not(None) & ~is_good for column, (is_good, _) in zip(table.columns, rules, strict=True)]
        find_bad = select(literal(1)).select_from(table).where(or_(*is_bad)).limit(1)
        expected = [words for _, words in rules]
        checks.append(ValueCheck(find_bad, [*zip(table.columns, is_bad, expected, strict=True)]))
    return checks


def refuse_first(session: Session, column: Column[Any], is_bad: ColumnElement[bool], expected: str) -> None:
    """Raises AlteredRow for the first row that meets the condition. expected: what its column has to be"""
    table: Any = column.table
    first = session.execute(select(*_read_as_text(table)).where(is_bad).limit(1)).first()
    if first is not None:
        raise AlteredRow(column, first, expected)


def _read_as_text(table: Table) -> Iterator[ColumnElement[Any]]:
    """Yield the columns of the key, whatever they hold."""
    return (cast(column, String) for column in table.primary_key.columns)


def _make_rule(column: Column[Any], is_list: bool) -> tuple[ColumnElement[bool], str]:
    """Return whether a value that is not NULL is one of the column, and what it has to be."""
    raw: ColumnElement[Any] = type_coerce(column, String)
    kind, number = func.typeof(raw), type_coerce(column, BigInteger)
    match column.type:
        case Boolean():
            return (kind == "integer") & number.in_((0, 1)), "0 or 1"
        case Integer():  # BigInteger too
            is_big = isinstance(column.type, BigInteger) or column.primary_key or column.foreign_keys
            highest = MAX_NUMBER if is_big else MAX_INTEGER
            return (kind == "integer") & number.between(0, highest), f"a whole number from 0 to {highest}"
        case Float():
            is_time = column.name.endswith(("_at", "_until")) or column.name == "since"
            low, high = (FIRST_SECOND, LAST_SECOND) if is_time else (-MAX_FLOAT, MAX_FLOAT)
            expected = "a time within the years 1 to 9999" if is_time else "a finite number"
            return kind.in_(("integer", "real")) & column.between(low, high), expected
        case LargeBinary():
            return kind == "blob", "bytes"
        case String():
            length = literal(1) if column.type.length is None else func.length(raw) <= column.type.length
            has_nul = func.instr(cast(raw, LargeBinary), b"\0") > 0
            limit = "" if column.type.length is None else f" of at most {column.type.length} characters"
            return (kind == "text") & length & ~has_nul, f"a text{limit}"
    opening = "[" if is_list else "{"
    is_absent = (raw == "null") & literal(column.nullable)
    is_json = func.substr(func.ltrim(raw), 1, 1) == opening
    return (kind == "text") & or_(is_json, is_absent), f"JSON that begins with {opening}"


def _is_list(mapper: Any, column: Column[Any]) -> bool:
    """Whether a column of JSON holds lists."""
    annotation = mapper.class_.__annotations__[mapper.get_property_by_column(column).key]
    [value] = get_args(annotation)
    return get_origin(value) is list
