"""Refuse rows of a snapshot that the service would not write: a snapshot is not signed, and may have been altered.

One such row can keep a whole service from being ready. `value_checks.py` checks single values by the types of their
columns. The rest is here: choices, and what rows say together.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, FiniteFloat, StringConstraints, TypeAdapter, ValidationError
from sqlalchemy import Column, Engine, String, exists, func, select, type_coerce
from sqlalchemy.orm import Session

from app.db.field_types import (
    NO_NUL,
    LabelPolicy,
    LabelWeights,
    Publication,
    Role,
    ScheduleHours,
    TimeOfDay,
    Trigger,
    Word,
)
from app.db.tables import (
    Collection,
    DamagedFace,
    Deployment,
    Embedding,
    Face,
    ModelRecord,
    StoredCompensation,
    Subject,
    TrainingPolicy,
)
from app.errors import Invalid
from app.galleries.measurements import Measurement
from app.snapshots.value_checks import AlteredRow, make_value_checks, refuse_first
from app.storage.embedding_codec import decode_embeddings
from app.storage.recognisers.external_models import read_external
from ml.compensation import SourceCompensation
from ml.descriptors.external import MAX_ABSOLUTE_VALUE
from ml.errors import LikenessError

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
MALFORMED_ERRORS = (
    LikenessError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)
"""What reading JSON or bytes of another form than expected raises."""


class MergedSubject(BaseModel):
    """A subject that was merged into another: see `Subject.merged_subjects`."""

    pk: int | None = None
    id: Word
    external_id: Annotated[str, StringConstraints(max_length=255, pattern=NO_NUL)] | None
    created_at: FiniteFloat
    merged_at: FiniteFloat


def check_rows(folder: Path, rows: Engine) -> None:
    """Check that all rows are as the service writes them. Raises Invalid with the table, the row and the column."""
    with Session(rows) as session:
        try:
            for check in make_value_checks():
                check.run(session)
            for attribute, values in CHOICES.items():
                _check_choices(session, attribute.property.columns[0], values)
            _check_merged_subjects(session)
            _check_models(session)
            _check_vectors(session)
            _check_deployments(session)
            _check_compensations(session)
        except AlteredRow as error:
            raise Invalid(f"{folder} was altered: {error}; use another snapshot") from error


@cache
def _make_adapter(values: Any) -> TypeAdapter[Any]:
    return TypeAdapter(values)


def _check_choices(session: Session, column: Column[Any], values: Any) -> None:
    for value in session.scalars(select(column).distinct()):
        try:
            _make_adapter(values).validate_python(value)
        except ValidationError as error:
            refuse_first(session, column, column == value, f"as it should be: {error.errors()[0]['msg']}")


def _check_merged_subjects(session: Session) -> None:
    stored = type_coerce(Subject.merged_subjects, String)
    merged = select(Subject.pk, Subject.merged_subjects).where(stored != "[]")
    for pk, value in session.execute(merged.execution_options(yield_per=ROWS_PER_BATCH)):
        try:
            _make_adapter(list[MergedSubject]).validate_python(value, strict=True)
        except ValidationError as error:
            raise AlteredRow(_column(Subject.merged_subjects), (pk,), "a list of merged subjects") from error


def _check_models(session: Session) -> None:
    """Check what others read of manifests, and that collections of imported vectors name a model of theirs."""
    external = {model.id for model in session.scalars(select(ModelRecord)) if _reads_imported_vectors(model)}
    is_named = Collection.external_model.in_(external)
    expected = "a model of imported vectors that the snapshot holds"
    column = _column(Collection.external_model)
    refuse_first(session, column, column.is_not(None) & ~is_named, expected)


def _reads_imported_vectors(model: ModelRecord) -> bool:
    """Raises AlteredRow if what is read of the manifest is not there."""
    try:
        external, tasks, embedder = read_external(model.manifest), model.manifest["tasks"], model.manifest["embedder"]
        is_whole = isinstance(embedder, dict) and all(isinstance(task, str) for task in tasks)
    except MALFORMED_ERRORS:
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
            refuse_first(session, column, of_model, "float32 numbers")
        is_other = func.length(Embedding.vector) != size
        refuse_first(session, column, of_model & is_other, f"{size // 4} float32 numbers, as its model has them")
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
        is_here = Face.collection_id == deployment.collection_id
        is_damaged = exists().where(DamagedFace.face_pk == Face.pk)
        by_champion = (Embedding.model_id == deployment.champion) & (Embedding.task == deployment.task)
        is_embedded = exists().where(Embedding.face_pk == Face.pk, by_champion)
        has_faces = session.scalar(select(Face.pk).where(is_here, ~is_damaged).limit(1)) is not None
        if has_faces and session.scalar(select(Face.pk).where(is_here, is_embedded).limit(1)) is None:
            raise AlteredRow(_column(Deployment.champion), key, "a model that has embedded the faces")
        try:
            for measured in deployment.measurements.values():
                Measurement.from_dict(measured)
        except MALFORMED_ERRORS as error:
            raise AlteredRow(_column(Deployment.measurements), key, "what is measured of models") from error


def _check_compensations(session: Session) -> None:
    for stored in session.scalars(select(StoredCompensation).where(StoredCompensation.data != b"")):
        try:
            SourceCompensation.from_bytes(stored.data)
        except MALFORMED_ERRORS as error:
            key = (stored.collection_id, stored.task, stored.model_id)
            raise AlteredRow(_column(StoredCompensation.data), key, "a source compensation") from error


def _column(attribute: Any) -> Column[Any]:
    column: Column[Any] = attribute.property.columns[0]
    return column
