"""Filter the faces that may match by subject, role and metadata, as SQL for SQLite and PostgreSQL."""

import json
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from sqlalchemy import ColumnElement, Double, Numeric, String, and_, case, cast, func, literal, not_, or_
from sqlalchemy.orm import InstrumentedAttribute

from app.db.field_types import NO_NUL, Role, Source, SubjectId
from app.db.subject_ids import list_spellings
from app.db.tables import Face, Subject
from app.deps.server.json_limits import JsonLimits, check_json

Text = Annotated[str, StringConstraints(pattern=NO_NUL)]
Number = int | Annotated[float, Field(allow_inf_nan=False)]
Plain = Text | bool | Number | None
Ordered = Number | Text
Name = Annotated[str, StringConstraints(pattern=r'^[^"\\\x00-\x1f]{1,255}$')]
Clause = ColumnElement[bool]
MAX_CONDITIONS = 32
MAX_FILTER_VALUES = 1_000
MAX_FILTER_NUMBER = 2**63 - 1
"""SQLite reads whole numbers beyond it as floats, so that neighbours are equal."""
MAX_DENSE_FLOAT = 2**53
"""Up to it, every whole number is a float, and numbers are in the order of the decimals that stand for them."""
FILTER_LIMITS = JsonLimits(keys=MAX_CONDITIONS + 8, values=2 * MAX_FILTER_VALUES, depth=8)
Order = Callable[[Any, Any], Any]
ORDERS: dict[str, Order] = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
NULLABLE_OPERATORS = ("eq", "ne")


def check_filter_size(value: Any) -> Any:
    """Check the structure of a filter before it is parsed. Raises Invalid."""
    if isinstance(value, str):
        check_json(value, FILTER_LIMITS, "filter")
    return value


class Condition(BaseModel):
    """Conditions on the value of one key, which must all hold."""

    model_config = ConfigDict(extra="forbid", strict=True)
    eq: Plain = None
    ne: Plain = None
    any_of: list[Plain] | None = Field(None, alias="in", max_length=MAX_FILTER_VALUES)
    gt: Ordered | None = None
    gte: Ordered | None = None
    lt: Ordered | None = None
    lte: Ordered | None = None
    exists: bool | None = None

    @property
    def values(self) -> list[Plain]:
        """What the value of the key is compared with."""
        return [*(self.any_of or ()), *(getattr(self, name) for name in self.model_fields_set - {"any_of"})]


class Filter(BaseModel):
    """For example `{"subject": ["ann", "bob"], "metadata": {"site": "east", "age": {"gte": 18}}}`.

    `subject` is one id, several ids, or null for faces without a subject; `source` likewise. A plain value of a
    metadata key means equality. An operator other than `eq` and `ne` may not be null. At most 32 conditions on
    metadata, with 1,000 values in all. Numbers are compared exactly; one of 2^63 or more, or of -2^63 or less, is
    refused with 422: store longer ids as text.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    subject: SubjectId | Annotated[list[SubjectId], Field(max_length=MAX_FILTER_VALUES)] | None = None
    role: Role | None = None
    source: Source | Annotated[list[Source], Field(max_length=MAX_FILTER_VALUES)] | None = None
    metadata: dict[Name, Condition | Plain] = {}
    subject_metadata: dict[Name, Condition | Plain] = {}

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self._conditions and not self.model_fields_set & {"subject", "role", "source"}:
            raise ValueError("state at least one of subject, role, source, metadata, subject_metadata")
        if "role" in self.model_fields_set and self.role is None:
            raise ValueError("has null for role: state a role, or leave it out")
        for key, condition in (*self.metadata.items(), *self.subject_metadata.items()):
            if isinstance(condition, Condition):
                _check_operators(key, condition)
        return self

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        conditions = sum(len(w.model_fields_set) if isinstance(w, Condition) else 1 for w in self._conditions)
        if conditions > MAX_CONDITIONS:
            raise ValueError(f"has {conditions:,} conditions on metadata; at most {MAX_CONDITIONS} are allowed")
        lists = [named for named in (self.subject, self.source) if isinstance(named, list)]
        values = sum(map(len, lists)) + len(self._values)
        if values > MAX_FILTER_VALUES:
            raise ValueError(f"has {values:,} values; at most {MAX_FILTER_VALUES:,} are allowed")
        return self

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        if any(isinstance(value, (int, float)) and abs(value) > MAX_FILTER_NUMBER for value in self._values):
            raise ValueError(
                "has a number of 2^63 or more, or of -2^63 or less, which cannot be compared exactly: "
                "store longer ids as text"
            )
        return self

    @property
    def _conditions(self) -> list[Condition | Plain]:
        return [*self.metadata.values(), *self.subject_metadata.values()]

    @property
    def _values(self) -> list[Plain]:
        """What metadata is compared with."""
        return [v for w in self._conditions for v in (w.values if isinstance(w, Condition) else [w])]

    def clauses(self, dialect: str) -> list[Clause]:
        """Return the conditions on faces that are outer-joined with their subjects. dialect: as SQLAlchemy names it"""
        clauses: list[Clause] = []
        if "subject" in self.model_fields_set:
            named = [self.subject] if isinstance(self.subject, str) else self.subject
            spellings = [spelling for name in named or () for spelling in list_spellings(name)]
            clauses.append(Face.subject_pk.is_(None) if named is None else Subject.id.in_(spellings))
        if self.role is not None:
            clauses.append(Face.role == self.role)
        if "source" in self.model_fields_set:
            sources = [self.source] if isinstance(self.source, str) else self.source
            clauses.append(Face.source.is_(None) if sources is None else Face.source.in_(sources))
        for column, wanted in ((Face.attributes, self.metadata), (Subject.attributes, self.subject_metadata)):
            for key, condition in wanted.items():
                value = _SqliteValue(column, key) if dialect == "sqlite" else _PostgresValue(column, key)
                clauses += _build_clauses(value, condition)
        return clauses


def _check_operators(key: str, condition: Condition) -> None:
    """Raises ValueError if everybody would meet a part of the condition."""
    stated = condition.model_dump(by_alias=True, exclude_unset=True)
    if not stated:
        raise ValueError(f"has no operator for {key!r}: state one, such as eq, or leave the key out")
    for name, value in stated.items():
        if value is None and name not in NULLABLE_OPERATORS:
            raise ValueError(f"has null for {name} of {key!r}: state a value, or leave the operator out")


class _JsonValue(ABC):
    """The value of a key in a JSON column. kind: its JSON type as the database names it; text: a text as it is"""

    text_kind: str
    kind: ColumnElement[str]
    text: ColumnElement[str]

    @abstractmethod
    def is_bool(self, value: bool) -> Clause: ...

    @abstractmethod
    def is_number(self, numbers: Sequence[Number]) -> Clause:
        """Return whether it is one of these numbers."""

    @abstractmethod
    def compare_number(self, order: Order, limit: Number) -> Clause: ...

    def is_text(self, texts: Sequence[str]) -> Clause:
        """Return whether it is one of these texts."""
        return and_(self.kind == self.text_kind, self.text.in_(texts))

    def equals(self, value: Plain) -> Clause:
        if value is None:
            return or_(self.kind.is_(None), self.kind == "null")
        if isinstance(value, bool):
            return self.is_bool(value)
        return self.is_text([value]) if isinstance(value, str) else self.is_number([value])

    def is_among(self, values: Sequence[Plain]) -> Clause:
        """Return one comparison for all texts and one for all numbers: a chain of `or` is too deep for SQLite."""
        texts = [v for v in values if isinstance(v, str)]
        numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        others = {v for v in values if v is None or isinstance(v, bool)}
        return or_(
            literal(False),
            *([self.is_text(texts)] if texts else []),
            *([self.is_number(numbers)] if numbers else []),
            *(self.equals(other) for other in others),
        )

    def compare(self, order: Order, limit: Number | str) -> Clause:
        if isinstance(limit, str):
            return and_(self.kind == self.text_kind, order(self.text, limit))
        return self.compare_number(order, limit)


class _SqliteValue(_JsonValue):
    """SQLite compares whole numbers with floats exactly, if they have 64 bits."""

    text_kind = "text"

    def __init__(self, column: InstrumentedAttribute[Any], key: str) -> None:
        path = f"$.{json.dumps(key)}"  # SQLite compares it with the stored JSON, where what is not ASCII is escaped
        self.kind = func.json_type(column, path, type_=String)
        self.text = func.json_extract(column, path, type_=String)
        self.number = func.json_extract(column, path)

    def is_bool(self, value: bool) -> Clause:
        return self.kind == str(value).lower()

    def is_number(self, numbers: Sequence[Number]) -> Clause:
        return and_(self.kind.in_(("integer", "real")), self.number.in_([literal(number) for number in numbers]))

    def compare_number(self, order: Order, limit: Number) -> Clause:
        return and_(self.kind.in_(("integer", "real")), order(self.number, limit))


class _PostgresValue(_JsonValue):
    """Floats are stored as the shortest decimals that stand for them, and are compared by these where that is exact."""

    text_kind = "string"

    def __init__(self, column: InstrumentedAttribute[Any], key: str) -> None:
        self.kind = func.json_typeof(column.op("->")(key), type_=String)
        self.text = column.op("->>", return_type=String())(key).collate("C")  # as SQLite and Python order text
        self.float = cast(self.text, Double)
        self.decimal = cast(self.text, Numeric)

    def is_bool(self, value: bool) -> Clause:
        return and_(self.kind == "boolean", self.text == str(value).lower())

    def is_number(self, numbers: Sequence[Number]) -> Clause:
        if all(abs(number) <= MAX_DENSE_FLOAT for number in numbers):
            return self._if_number(self.decimal.in_([Decimal(repr(number)) for number in numbers]))
        floats = [float(number) for number in numbers if number == float(number)]
        wholes = [Decimal(number) for number in numbers if number == int(number)]
        return self._if_number(self._choose(self.float.in_(floats), self.decimal.in_(wholes)))

    def compare_number(self, order: Order, limit: Number) -> Clause:
        if abs(limit) <= MAX_DENSE_FLOAT:
            return self._if_number(order(self.decimal, Decimal(repr(limit))))
        of_float, of_whole = order(self.float, _round_limit(order, limit)), order(self.decimal, Decimal(limit))
        return self._if_number(self._choose(of_float, of_whole))

    def _if_number(self, condition: Clause) -> Clause:
        """The casts fail for other kinds. AND does not guarantee that the kind is checked first, but CASE does."""
        return case((self.kind == "number", condition))

    def _choose(self, of_float: Clause, of_whole: Clause) -> Clause:
        """Return the condition of the kind of number. One with a fraction or an exponent was a float."""
        return case((self.text.regexp_match("[.eE]"), of_float), else_=of_whole)


def _round_limit(order: Order, limit: Number) -> float:
    """Return the float that every other float compares with as with the limit, which may lie between two floats."""
    rounded = float(limit)
    if order in (operator.gt, operator.le):
        return rounded if rounded <= limit else math.nextafter(rounded, -math.inf)
    return rounded if rounded >= limit else math.nextafter(rounded, math.inf)


def _build_clauses(value: _JsonValue, wanted: Condition | Plain) -> list[Clause]:
    if not isinstance(wanted, Condition):
        return [value.equals(wanted)]
    clauses: list[Clause] = []
    given = wanted.model_fields_set
    if "eq" in given:
        clauses.append(value.equals(wanted.eq))
    if "ne" in given:
        clauses.append(not_(func.coalesce(value.equals(wanted.ne), literal(False))))
    if wanted.any_of is not None:
        clauses.append(value.is_among(wanted.any_of))
    if wanted.exists is not None:
        clauses.append(value.kind.is_not(None) if wanted.exists else value.kind.is_(None))
    for name, order in ORDERS.items():
        limit = getattr(wanted, name)
        if limit is not None:
            clauses.append(value.compare(order, limit))
    return clauses
