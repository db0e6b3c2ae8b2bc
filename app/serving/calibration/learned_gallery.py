"""Which faces of a gallery a model has learned from: searches for the others alone can stand for strangers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, exists, false, func, select
from sqlalchemy.orm import Session, aliased

from app.db.session import stream_raw_rows
from app.db.tables import Collection, Face, ModelRecord
from app.galleries.learned_collections import list_learned_changes
from app.serving.index_builder import IndexKey
from ml.model import Model
from ml.types import Ids

MIN_SHARED_FACES = 0.5
"""Of a gallery: with more photos of the collections that a model was trained in, it counts as a copy of these."""


@dataclass(frozen=True, eq=False)
class LearnedGallery:
    """What a model has learned of a gallery.

    listed: (n,) pks of its faces that the model may have learned from, or of the others: see `lists_unlearned`
    home_faces: (n,) pks of its faces with photos that were in the collection in which the training searched for
        strangers; None: of all that it has learned from
    is_trained_here: whether the gallery counts as one that it was trained in
    """

    listed: Ids
    lists_unlearned: bool
    home_faces: Ids | None
    is_trained_here: bool

    def find_learned(self, ids: Ids) -> NDArray[np.bool_]:
        """Return (n,) which of these faces of the gallery the model may have learned from."""
        return np.isin(ids, self.listed, assume_unique=True, invert=self.lists_unlearned)

    def count_home_faces(self, ids: Ids) -> int:
        """Return how many of these faces were searched in the training, or have the same photo."""
        if self.home_faces is None:
            return int(self.find_learned(ids).sum())
        return int(np.isin(ids, self.home_faces, assume_unique=True).sum())


def read_learned_gallery(session: Session, model: Model, key: IndexKey) -> LearnedGallery:
    """Read what a model has learned of a gallery: of this collection, or of one with the same photos.

    A model that is not stored yet has learned from all faces of the collection that it was trained in.
    """
    learned = list_learned_changes(model.provenance)
    collection, record = session.get(Collection, key.collection), session.get(ModelRecord, model.id)
    here = [key.collection, *(collection.copied_from if collection is not None else ())]
    own = [name for name in learned if name in here]
    others = [name for name in learned if name not in here]
    home = model.provenance.get("collection", key.collection)
    home_faces = None if home in here else _read_faces(session, key, _shares_photo_with([home]))
    if not own:
        faces = _read_faces(session, key, _shares_photo_with(others))
        return LearnedGallery(faces, False, home_faces, _is_copy(session, key, len(faces)))
    if record is None:
        return LearnedGallery(_read_faces(session, key, false()), True, home_faces, True)
    is_later = (Face.created_at > record.created_at) & (Face.change > max(learned[name] for name in own))
    unlearned = _read_faces(session, key, is_later & ~_shares_photo_with(others))
    return LearnedGallery(unlearned, True, home_faces, True)


def _shares_photo_with(collections: Sequence[str]) -> ColumnElement[bool]:
    other = aliased(Face)
    is_there = exists().where(other.collection_id.in_(collections), other.image_id == Face.image_id)
    return is_there if collections else false()


def _read_faces(session: Session, key: IndexKey, condition: ColumnElement[bool]) -> Ids:
    chosen = select(Face.pk).where(Face.collection_id == key.collection, condition).order_by(Face.pk)
    parts = [np.array(rows, np.int64).reshape(-1) for rows in stream_raw_rows(session, chosen)]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _is_copy(session: Session, key: IndexKey, shared_faces: int) -> bool:
    if not shared_faces:
        return False
    faces = session.scalar(select(func.count()).select_from(Face).where(Face.collection_id == key.collection))
    return shared_faces > MIN_SHARED_FACES * (faces or 0)
