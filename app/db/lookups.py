"""Look up rows that must exist."""

from typing import Literal

from sqlalchemy.orm import Session

from app.db.tables import Collection, ModelRecord
from app.errors import NotFound


def get_collection(session: Session, collection_id: str, *, lock: bool = False) -> Collection:
    """Return a collection. Raises NotFound.

    lock: whether to keep other transactions from changing the collection until this one ends
    """
    if lock:
        collection = session.get(Collection, collection_id, with_for_update=True, populate_existing=True)
    else:
        collection = session.get(Collection, collection_id)
    if collection is None:
        raise NotFound(f"no collection {collection_id!r}")
    return collection


def get_model(session: Session, model_id: str, *, lock: Literal["shared", "exclusive"] | None = None) -> ModelRecord:
    """Return the row of a model. Raises NotFound.

    lock: no other transaction changes the row until this one ends; a shared lock can be held by several
    """
    if lock:
        model = session.get(ModelRecord, model_id, with_for_update={"read": lock == "shared"}, populate_existing=True)
    else:
        model = session.get(ModelRecord, model_id)
    if model is None:
        raise NotFound(f"no model {model_id!r}")
    return model
