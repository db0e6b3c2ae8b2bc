"""Which rows belong to a snapshot of one collection, or of the whole service."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, or_, select
from sqlalchemy.orm import Session

from app.db.json_names import JsonNames
from app.db.tables import (
    POINTERS,
    Atlas,
    AuditEntry,
    AuditHead,
    Base,
    ClusteredFace,
    Collection,
    Deployment,
    Embedding,
    Erasure,
    Evaluation,
    Face,
    FaceCluster,
    FaceCoordinates,
    Follower,
    Job,
    JobItem,
    KeptSnapshot,
    Key,
    Label,
    ModelRecord,
    ServerToken,
    StoredResponse,
    Task,
    Training,
)
from app.db.visibility import RULES
from app.storage.model_cache import HOLDOUT_SUFFIX

NEVER_COPIED: dict[type[Base], str] = {
    Follower: "what a running process serves",
    AuditEntry: "the audit log is signed by the service that wrote it",
    AuditHead: "the audit log is signed by the service that wrote it",
    KeptSnapshot: "which snapshots there are belongs to the home that keeps them",
    ServerToken: "which servers of PostgreSQL there are belongs to the home that has met them",
    StoredResponse: "answers to repeated requests, kept for a day",
}
"""Tables that no snapshot holds -> the reason."""
OF_THE_SERVICE: dict[type[Base], str] = {
    Erasure: "receipts belong to the service that has signed them",
    Key: "keys belong to the service",
    Job: "jobs belong to the service",
    JobItem: "jobs belong to the service",
    Training: "it names faces and labels by the numbers that they had",
    Evaluation: "it names faces by the numbers that they had",
}
"""Tables that a snapshot of one collection does not hold -> the reason."""
Condition = Callable[[str, set[str]], ColumnElement[bool]]


def list_selections(session: Session, collection: str | None) -> list[tuple[Table, Select[Any]]]:
    """List the tables of a snapshot, those that others refer to first, each with the statement that selects its rows.

    collection: the only one to select; None: all rows
    """
    tables = _list_tables(collection)
    if collection is None:
        return [(table, _in_order(table)) for table in tables]
    models = find_models(session, collection)
    return [(table, _in_order(table).where(_belongs(row, collection, models))) for table, row in tables.items()]


def list_unruled_tables() -> list[str]:
    """List the tables for which nothing says which of their rows belong to a collection."""
    ruled = {*NEVER_COPIED, *OF_THE_SERVICE, *CONDITIONS}
    rows = (mapper.class_ for mapper in Base.registry.mappers)
    return [row.__tablename__ for row in rows if row not in ruled and "collection_id" not in row.__table__.columns]


def find_models(session: Session, collection: str) -> set[str]:
    """Return the ids of the models that a collection needs: deployed, trained on it alone, or what these started from.

    A model that no row describes any more is left out.
    """
    row = session.get(Collection, collection)
    new: set[str] = set() if row is None or row.external_model is None else {row.external_model}
    for deployment in session.scalars(select(Deployment).where(Deployment.collection_id == collection)):
        new |= {model for model in (getattr(deployment, pointer) for pointer in POINTERS) if model is not None}
    dialect = session.get_bind().dialect.name
    own = RULES[Training](Training, JsonNames(dialect, (collection,)))
    new |= {model for model in session.scalars(select(Training.model).where(own)) if model is not None}
    known: set[str] = set()
    while new:
        rows = session.scalars(select(ModelRecord).where(ModelRecord.id.in_(new))).all()
        known |= {row.id for row in rows}
        plans = ((row.manifest.get("facts") or {}).get("plan") or {} for row in rows)
        new = {plan["start_from"] for plan in plans if plan.get("start_from")} - known
    return known


def list_model_folders(models: set[str]) -> list[str]:
    """List the names of the folders of models: their own and those of their holdout models."""
    return [folder for model in sorted(models) for folder in (model, model + HOLDOUT_SUFFIX)]


def _list_tables(collection: str | None) -> dict[Table, type[Base]]:
    """Return table -> its class, those that others refer to first."""
    left_out = {*NEVER_COPIED, *(OF_THE_SERVICE if collection is not None else ())}
    by_table = {mapper.class_.__table__: mapper.class_ for mapper in Base.registry.mappers}
    return {table: by_table[table] for table in Base.metadata.sorted_tables if by_table[table] not in left_out}


def _in_order(table: Table) -> Select[Any]:
    """Select all rows in the order of their key, so that a job comes before its parts."""
    return select(table).order_by(*table.primary_key.columns)


def _belongs(row: Any, collection: str, models: set[str]) -> ColumnElement[bool]:
    """Return whether a row belongs to the collection, and names no model that is left out."""
    own = CONDITIONS[row](collection, models) if row in CONDITIONS else row.__table__.c.collection_id == collection
    for column in row.__table__.columns:
        if column.references(ModelRecord.__table__.c.id):
            own &= or_(column.is_(None), column.in_(models))
    return own


def _faces_of(collection: str) -> Select[Any]:
    return select(Face.pk).where(Face.collection_id == collection)


def _is_used_task(collection: str, models: set[str]) -> ColumnElement[bool]:
    labelled = select(Label.task).where(Label.face_a.in_(_faces_of(collection)))
    deployed = select(Deployment.task).where(Deployment.collection_id == collection)
    return or_(Task.name.in_(labelled), Task.name.in_(deployed))


CONDITIONS: dict[type[Base], Condition] = {
    Collection: lambda collection, _: Collection.id == collection,
    Task: _is_used_task,
    ModelRecord: lambda _, models: ModelRecord.id.in_(models),
    Embedding: lambda collection, models: Embedding.model_id.in_(models) & Embedding.face_pk.in_(_faces_of(collection)),
    Label: lambda collection, _: Label.face_a.in_(_faces_of(collection)) & Label.face_b.in_(_faces_of(collection)),
    ClusteredFace: lambda collection, _: ClusteredFace.cluster_pk.in_(
        select(FaceCluster.pk).where(FaceCluster.collection_id == collection)
    ),
    FaceCoordinates: lambda collection, models: FaceCoordinates.atlas_pk.in_(
        select(Atlas.pk).where(Atlas.collection_id == collection, Atlas.model_id.in_(models))
    ),
}
"""Tables without a column `collection_id` -> which rows belong to a collection. The others have that column."""
