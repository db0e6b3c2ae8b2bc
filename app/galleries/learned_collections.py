"""From which collections a model has learned: by its own training, and by those of the models that it continued."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, false, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Face, ModelRecord
from app.errors import Conflict
from app.galleries.external_descriptors import check_external_suits
from ml.descriptors.external import External
from ml.errors import Corrupt
from ml.model import Model

log = logging.getLogger("likeness.learned")

COLLECTIONS_CREATED_AT = "collections_created_at"
"""The part of a model's provenance that holds when each collection was created, beside `changes`."""
READ_AT = "read_at"
"""The part of a model's provenance, and of a training's snapshot, that says when the faces were read, in seconds since
1970; earlier versions noted none."""
LAST_READ = "last_read"
"""The part of a model's provenance that holds the pk of the last face that was read, if only the first ones were."""
CONTINUED_CHANGES = "continued_changes"
"""The part of a model's provenance that holds what the models that it continued had learned from: see `changes`."""
OPEN_SET_ELSEWHERE = "open_set_elsewhere"
"""The part of a model's provenance that holds how people held out of its training score in the collections that it read
besides its own."""


def list_learned_changes(provenance: Mapping[str, Any]) -> dict[str, int]:
    """Return collection -> the change up to which a model has learned from it. Empty if it was not fitted here."""
    return {**provenance.get(CONTINUED_CHANGES, {}), **provenance.get("changes", {})}


def list_first_changes(provenance: Mapping[str, Any]) -> dict[str, int]:
    """Return collection -> the change up to which the first training of a model there has learned from it.

    0 where a model that it continued has learned from the collection, since nothing says when the first of these did.
    """
    continued = provenance.get(CONTINUED_CHANGES, {})
    return {name: 0 if name in continued else change for name, change in list_learned_changes(provenance).items()}


def is_calibrated_on_learned(provenance: Mapping[str, Any], task: str) -> bool:
    """Return whether a model's own calibration of a task is of pairs of people from whom the model has learned."""
    return bool(list_learned_changes(provenance)) and task not in provenance.get("by_held_out", ())


@dataclass(frozen=True)
class LearnedCollection:
    """A collection that a model has learned from.

    created_at: when it was created, None if that was not recorded
    made_at: when the model was stored, infinity if it is not: it has learned from nobody who was enrolled later
    """

    name: str
    created_at: float | None
    made_at: float

    def is_same(self, collection: Collection) -> bool:
        """Whether a collection of this name is the one that the model has learned from, not one that was created later.

        Where its creation was not recorded, one that is older than the model counts as the same.
        """
        if self.created_at is None:
            return collection.created_at <= self.made_at
        return collection.created_at == self.created_at

    def match_faces(self, session: Session, external: External | None) -> ColumnElement[bool]:
        """Return the condition of the stored faces of people whom the model may have learned from there.

        No face meets it if the collection is gone, or its faces do not have what the model reads (external: imported
        vectors; None: crops). Of a collection that was created later under the same name, only faces that were restored
        into it do: they were enrolled before the model was stored.
        """
        collection = session.get(Collection, self.name)
        if collection is None or collection.is_deleted:
            return false()
        try:
            check_external_suits(session, collection, external, "the model")
        except (Conflict, Corrupt) as error:
            log.warning("learned.unsuitable collection=%s error=%s", self.name, error)
            return false()
        here = Face.collection_id == self.name
        return here if self.is_same(collection) else here & (Face.created_at <= self.made_at)


def list_learned_collections(session: Session, model: Model) -> list[LearnedCollection]:
    """List the collections that a model has learned from. They may be gone."""
    made_at = read_model_creation(session, model)
    return [read_learned_collection(model, name, made_at) for name in list_learned_changes(model.provenance)]


def read_learned_collection(model: Model, name: str, made_at: float) -> LearnedCollection:
    """Read which collection of this name a model has learned from. made_at: see `LearnedCollection`"""
    return LearnedCollection(name, model.provenance.get(COLLECTIONS_CREATED_AT, {}).get(name), made_at)


def read_model_creation(session: Session, model: Model) -> float:
    """Return when a model was stored, infinity if it is not stored."""
    made_at = session.scalar(select(ModelRecord.created_at).where(ModelRecord.id == model.id))
    return math.inf if made_at is None else made_at
