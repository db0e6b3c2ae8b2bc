"""Refuse rows of a snapshot that the service would not write: a snapshot is not signed, and may have been altered.

One such row can keep a whole service from being ready. The checks run in SQLite, but for what has to be decoded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Engine,
    Float,
    Integer,
    LargeBinary,
    Select,
    String,
    Table,
    cast,
    exists,
    func,
    literal,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.orm import Session

from app.db.field_types import (
    MAX_INTEGER,
    LabelPolicy,
    LabelWeights,
    Publication,
    Role,
    ScheduleHours,
    TimeOfDay,
    Trigger,
)
from app.db.tables import (
    Base,
    Collection,
    DamagedFace,
    Deployment,
    Embedding,
    Face,
    ModelRecord,
    StoredCompensation,
    TrainingPolicy,
)
from app.errors import Invalid
from app.galleries.measurements import Measurement
from app.storage.embedding_codec import decode_embeddings
from app.storage.recognisers.external_models import read_external
from ml.compensation import SourceCompensation
from ml.descriptors.external import MAX_ABSOLUTE_VALUE
from ml.errors import LikenessError

MAX_NUMBER = 2**53 - 1
"""Of a row or a change: numbers beyond it do not survive JSON, and leave no room for those to come."""
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Of the years 1 to 9999, in seconds since 1970."""
MAX_FLOAT = 1.7976931348623157e308
ROWS_PER_BATCH = 4_096
CHOICES: dict[Any, Any] = {
    Face.role: Role,
    Deployment.label_policy: LabelPolicy,
    Deployment.label_weights: LabelWeights,
    TrainingPolicy.trigger: Trigger,
    TrainingPolicy.publish: Publication,
    TrainingPolicy.hours: ScheduleHours,
    TrainingPolicy.at: TimeOfDay | None,
}
"""Column -> the type of its values in bodies of requests."""
Malformed = (LikenessError, ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)


class AlteredRow(Exception):
    """A row that the service would not write."""

    def __init__(self, column: Column[Any], key: Any, expected: str) -> None:
        named = ", ".join(str(part)[:64] for part in key)
        super().__init__(f"{column.name} of the row ({named}) of {column.table.name} is not {expected}")


def check_rows(folder: Path, rows: Engine) -> None:
    """Raises Invalid, with the table, the row and the column, if a row is not as the service writes it."""
    with Session(rows) as session:
        try:
            for check in _make_value_checks():
                check.run(session)
            for attribute, values in CHOICES.items():
                _check_choices(session, attribute.property.columns[0], values)
            _check_models(session)
            _check_vectors(session)
            _check_deployments(session)
            _check_compensations(session)
        except AlteredRow as error:
            raise Invalid(f"{folder} was altered: {error}; use another snapshot") from error


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
                _refuse_first(session, column, is_bad, expected)


@cache
def _make_value_checks() -> list[ValueCheck]:
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


def _refuse_first(session: Session, column: Column[Any], is_bad: ColumnElement[bool], expected: str) -> None:
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


@cache
def _make_adapter(values: Any) -> TypeAdapter[Any]:
    return TypeAdapter(values)


def _check_choices(session: Session, column: Column[Any], values: Any) -> None:
    for value in session.scalars(select(column).distinct()):
        try:
            _make_adapter(values).validate_python(value)
        except ValidationError as error:
            _refuse_first(session, column, column == value, f"as it should be: {error.errors()[0]['msg']}")


def _check_models(session: Session) -> None:
    """Check what others read of manifests, and that collections of imported vectors name a model of theirs."""
    external = {model.id for model in session.scalars(select(ModelRecord)) if _reads_imported_vectors(model)}
    is_named = Collection.external_model.in_(external)
    expected = "a model of imported vectors that the snapshot holds"
    column = _column(Collection.external_model)
    _refuse_first(session, column, column.is_not(None) & ~is_named, expected)


def _reads_imported_vectors(model: ModelRecord) -> bool:
    """Raises AlteredRow if what is read of the manifest is not there."""
    try:
        external, tasks, embedder = read_external(model.manifest), model.manifest["tasks"], model.manifest["embedder"]
        is_whole = isinstance(embedder, dict) and all(isinstance(task, str) for task in tasks)
    except Malformed:
        is_whole = False
    if not is_whole:
        raise AlteredRow(_column(ModelRecord.manifest), (model.id,), "the manifest of a model")
    return external is not None


def _check_vectors(session: Session) -> None:
    """Check that the vectors of a model are of one length, and finite."""
    column = _column(Embedding.vector)
    for model_id, task, size in _list_vector_sizes(session):
        of_model = (Embedding.model_id == model_id) & (Embedding.task == task)
        if not size or size % 4:
            _refuse_first(session, column, of_model, "float32 numbers")
        is_other = func.length(Embedding.vector) != size
        _refuse_first(session, column, of_model & is_other, f"{size // 4} float32 numbers, as its model has them")
        vectors = select(Embedding.face_pk, Embedding.vector).where(of_model)
        for part in session.execute(vectors.execution_options(yield_per=ROWS_PER_BATCH)).partitions():
            largest = np.abs(decode_embeddings([row.vector for row in part], size // 4)).max(axis=1)
            for i in np.flatnonzero(~(largest <= MAX_ABSOLUTE_VALUE)):  # NaN is not less
                raise AlteredRow(column, (model_id, task, part[int(i)].face_pk), "finite numbers")


def _list_vector_sizes(session: Session) -> list[tuple[str, str, int]]:
    """List models and tasks with the bytes that a vector has to have: as stated, otherwise as most have."""
    size, count = func.length(Embedding.vector), func.count()
    sizes = select(Embedding.model_id, Embedding.task, size).group_by(Embedding.model_id, Embedding.task, size)
    commonest = {(model_id, task): size for model_id, task, size in session.execute(sizes.order_by(count)).all()}
    return [
        (model_id, task, _find_stated_bytes(session, model_id) or size) for (model_id, task), size in commonest.items()
    ]


def _find_stated_bytes(session: Session, model_id: str) -> int | None:
    """Return the size of the imported vectors that a model compares as they are; None: another model."""
    is_compared = select(Collection.id).where(Collection.external_model == model_id).limit(1)
    model = session.get(ModelRecord, model_id)
    external = read_external(model.manifest) if model is not None and session.scalar(is_compared) else None
    return None if external is None else 4 * external.size


def _check_deployments(session: Session) -> None:
    """Check that champions have embedded the faces, and that what was measured can be read."""
    for deployment in session.scalars(select(Deployment)):
        key = (deployment.collection_id, deployment.task)
        is_here, is_damaged = (
            Face.collection_id == deployment.collection_id,
            exists().where(DamagedFace.face_pk == Face.pk),
        )
        by_champion = (Embedding.model_id == deployment.champion) & (Embedding.task == deployment.task)
        is_embedded = exists().where(Embedding.face_pk == Face.pk, by_champion)
        has_faces = session.scalar(select(Face.pk).where(is_here, ~is_damaged).limit(1)) is not None
        if has_faces and session.scalar(select(Face.pk).where(is_here, is_embedded).limit(1)) is None:
            raise AlteredRow(_column(Deployment.champion), key, "a model that has embedded the faces")
        try:
            for measured in deployment.measurements.values():
                Measurement.from_dict(measured)
        except Malformed as error:
            raise AlteredRow(_column(Deployment.measurements), key, "what is measured of models") from error


def _check_compensations(session: Session) -> None:
    for stored in session.scalars(select(StoredCompensation).where(StoredCompensation.data != b"")):
        try:
            SourceCompensation.from_bytes(stored.data)
        except Malformed as error:
            key = (stored.collection_id, stored.task, stored.model_id)
            raise AlteredRow(_column(StoredCompensation.data), key, "a source compensation") from error


def _column(attribute: Any) -> Column[Any]:
    column: Column[Any] = attribute.property.columns[0]
    return column
