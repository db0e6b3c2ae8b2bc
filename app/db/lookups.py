"""Look up rows that must exist. A row that the session may not see is answered like one that does not exist.

So is a collection that is being deleted.
"""

from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Base, Collection, Evaluation, Face, Job, KeptSnapshot, Key, ModelRecord, Training
from app.errors import NotFound

Kind = Literal["job", "training", "evaluation", "model", "key", "snapshot"]
ROWS: dict[Kind, type[Base]] = {
    "job": Job,
    "training": Training,
    "evaluation": Evaluation,
    "model": ModelRecord,
    "key": Key,
    "snapshot": KeptSnapshot,
}


def make_not_found(kind: str, name: str) -> NotFound:
    """Return the error for a collection, job, ... that does not exist, or that the caller may not see."""
    return NotFound(f"no {kind} {name!r}")


def get_row(session: Session, kind: Kind, row_id: str) -> Any:
    """Return the row. Raises NotFound."""
    row = None if "\0" in row_id else session.get(ROWS[kind], row_id)  # PostgreSQL refuses a zero byte
    if row is None:
        raise make_not_found(kind, row_id)
    return row


def get_collection(session: Session, collection_id: str, *, lock: bool = False) -> Collection:
    """Return a collection. Raises NotFound.

    lock: whether to keep other transactions from changing the collection until this one ends
    """
    if lock:
        collection = session.get(Collection, collection_id, with_for_update=True, populate_existing=True)
    else:
        collection = session.get(Collection, collection_id)
    if collection is None or collection.is_deleted:
        raise make_not_found("collection", collection_id)
    return collection


def get_face(session: Session, collection_id: str, face_id: str) -> Face:
    """Return a face. Raises NotFound."""
    faces = select(Face).join(Collection, Collection.id == Face.collection_id).where(~Collection.is_deleted)
    face = session.scalar(faces.where(Face.collection_id == collection_id, Face.face_id == face_id))
    if face is None:
        raise NotFound(f"no face {face_id!r} in collection {collection_id!r}")
    return face


def get_model(session: Session, model_id: str, *, lock: Literal["shared", "exclusive"] | None = None) -> ModelRecord:
    """Return the row of a model. Raises NotFound.

    lock: no other transaction changes the row until this one ends; a shared lock can be held by several
    """
    if lock:
        model = session.get(ModelRecord, model_id, with_for_update={"read": lock == "shared"}, populate_existing=True)
    else:
        model = session.get(ModelRecord, model_id)
    if model is None:
        raise make_not_found("model", model_id)
    return model
