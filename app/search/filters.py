"""Filter the faces that may match by subject, role and metadata, as SQL for SQLite and PostgreSQL."""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from sqlalchemy import ColumnElement, Float, Numeric, String, and_, case, cast, func, literal, not_, or_
from sqlalchemy.orm import InstrumentedAttribute

from app.db.field_types import NO_NUL, Role, Source, SubjectId
from app.db.subject_ids import list_spellings
from app.db.tables import Face, Subject
from app.deps.server.json_limits import JsonLimits, check_json

Text = Annotated[str, StringConstraints(pattern=NO_NUL)]
Plain = Text | bool | Annotated[float, Field(allow_inf_nan=False)] | None
Ordered = Annotated[float, Field(allow_inf_nan=False)] | Text
Name = Annotated[str, StringConstraints(pattern=r'^[^"\\\x00-\x1f]{1,255}$')]
Clause = ColumnElement[bool]
MAX_CONDITIONS = 32
MAX_FILTER_VALUES = 1_000
FILTER_LIMITS = JsonLimits(keys=MAX_CONDITIONS + 8, values=2 * MAX_FILTER_VALUES, depth=8)
OPERATORS = {"gt": "__gt__", "gte": "__ge__", "lt": "__lt__", "lte": "__le__"}


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
    def value_count(self) -> int:
        return len(self.any_of or ()) + len(self.model_fields_set - {"any_of"})


class Filter(BaseModel):
    """For example `{"subject": ["ann", "bob"], "metadata": {"site": "east", "age": {"gte": 18}}}`.

    `subject` is one id, several ids, or null for faces without a subject; `source` likewise. A plain value of a
    metadata key means equality. At most 32 conditions on metadata, with 1,000 values in all.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    subject: SubjectId | Annotated[list[SubjectId], Field(max_length=MAX_FILTER_VALUES)] | None = None
    role: Role | None = None
    source: Source | Annotated[list[Source], Field(max_length=MAX_FILTER_VALUES)] | None = None
    metadata: dict[Name, Condition | Plain] = {}
    subject_metadata: dict[Name, Condition | Plain] = {}

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("state at least one of subject, role, source, metadata, subject_metadata")
        return self

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        wanted = [*self.metadata.values(), *self.subject_metadata.values()]
        conditions = sum(len(w.model_fields_set) if isinstance(w, Condition) else 1 for w in wanted)
        if conditions > MAX_CONDITIONS:
            raise ValueError(f"has {conditions:,} conditions on metadata; at most {MAX_CONDITIONS} are allowed")
        lists = [named for named in (self.subject, self.source) if isinstance(named, list)]
        values = sum(map(len, lists)) + sum(w.value_count if isinstance(w, Condition) else 1 for w in wanted)
        if values > MAX_FILTER_VALUES:
            raise ValueError(f"has {values:,} values; at most {MAX_FILTER_VALUES:,} are allowed")
        return self

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


class _JsonValue:
    """The value of a key in a JSON column. kind: its JSON type as the database names it; text, number: the value"""

    texts: tuple[str, ...] = ("string",)
    numbers: tuple[str, ...] = ("number",)
    kind: ColumnElement[str]
    text: ColumnElement[str]
    number: ColumnElement[Any]

    def constant(self, value: float) -> ColumnElement[Any]:
        return literal(value, Float)

    def is_bool(self, value: bool) -> Clause:
        return and_(self.kind == "boolean", self.text == str(value).lower())

    def equals(self, value: Plain) -> Clause:
        if value is None:
            return or_(self.kind.is_(None), self.kind == "null")
        if isinstance(value, bool):
            return self.is_bool(value)
        return self.compared("__eq__", value)

    def is_among(self, values: Sequence[Plain]) -> Clause:
        """Return one comparison for all texts and one for all numbers: a chain of `or` is too deep for SQLite."""
        texts = [v for v in values if isinstance(v, str)]
        numbers = [self.constant(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        others = {v for v in values if v is None or isinstance(v, bool)}
        return or_(
            literal(False),
            *([and_(self.kind.in_(self.texts), self.text.in_(texts))] if texts else []),
            *([and_(self.kind.in_(self.numbers), self.number.in_(numbers))] if numbers else []),
            *(self.equals(other) for other in others),
        )

    def compared(self, operator: str, value: float | str) -> Clause:
        if isinstance(value, str):
            return and_(self.kind.in_(self.texts), getattr(self.text, operator)(value))
        return and_(self.kind.in_(self.numbers), getattr(self.number, operator)(self.constant(value)))


class _SqliteValue(_JsonValue):
    texts, numbers = ("text",), ("integer", "real")

    def __init__(self, column: InstrumentedAttribute[Any], key: str) -> None:
        path = f"$.{json.dumps(key)}"  # SQLite compares it with the stored JSON, where what is not ASCII is escaped
        self.kind = func.json_type(column, path, type_=String)
        self.text = func.json_extract(column, path, type_=String)
        self.number = func.json_extract(column, path, type_=Float)

    def is_bool(self, value: bool) -> Clause:
        return self.kind == str(value).lower()


class _PostgresValue(_JsonValue):
    def __init__(self, column: InstrumentedAttribute[Any], key: str) -> None:
        self.kind = func.json_typeof(column.op("->")(key), type_=String)
        self.text = column.op("->>", return_type=String())(key)
        # the cast fails for other kinds; AND does not guarantee that the kind is checked first, but CASE does
        self.number = case((self.kind == "number", cast(self.text, Numeric)))

    def constant(self, value: float) -> ColumnElement[Any]:
        return literal(Decimal(value), Numeric)


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
    for name, operator in OPERATORS.items():
        limit = getattr(wanted, name)
        if limit is not None:
            clauses.append(value.compared(operator, limit))
    return clauses
