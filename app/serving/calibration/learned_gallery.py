"""Which faces of a gallery a model has learned from: searches for the others alone can stand for strangers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, exists, func, select, true
from sqlalchemy.orm import Session, aliased

from app.db.session import stream_raw_rows
from app.db.tables import Collection, Deployment, Face, ModelRecord, Subject
from app.galleries.erasure_receipts import read_erased_photos
from app.galleries.learned_collections import (
    LAST_READ,
    READ_AT,
    list_first_changes,
    list_learned_changes,
    read_learned_collection,
)
from app.serving.calibration.seen_people import estimate_seen_share, is_copy, read_seen_share
from app.serving.faces.columns import DISTRACTOR
from app.serving.index_builder import IndexKey
from app.serving.loaded_index import LoadedIndex
from app.storage.installation_key import InstallationKey
from ml.model import Model
from ml.types import Ids

MIN_SHARED_FACES = 0.5
"""Of a gallery: with more photos of the collections that a model was trained in, it counts as a copy of these."""

IS_ANY = true()


@dataclass(frozen=True, eq=False)
class LearnedGallery:
    """What a model has learned of a gallery.

    listed: (n,) pks of its faces that the model may have learned from, or of the others: see `lists_unlearned`
    home_faces: (n,) pks of its faces with photos that were in the collection in which the training searched for
        strangers; None: of all that it has learned from
    distractors: (n,) pks of distractors that it may have learned from: those whose photos it knows from elsewhere, and
        those that may not have been distractors when it was trained here; None: of all that it has learned from
    learned_change: the change after which faces of the gallery may be new to the model, 0 if all may be; None: the
        gallery does not count as one that it was trained in
    seen_share: of the people here, whom it has learned from elsewhere: see `estimate_seen_share`; None: not known
    """

    listed: Ids
    lists_unlearned: bool
    home_faces: Ids | None
    learned_change: int | None
    seen_share: float | None = None
    distractors: Ids | None = None

    @property
    def is_trained_here(self) -> bool:
        """Whether the gallery counts as one that the model was trained in."""
        return self.learned_change is not None

    def with_seen(self, share: float | None) -> "LearnedGallery":
        """Return the same, or all as learned, where the model knows so many of the people from elsewhere."""
        if is_copy(share):
            return LearnedGallery(np.empty(0, np.int64), True, None, 0, share)
        return replace(self, seen_share=share)

    def find_learned(self, ids: Ids) -> NDArray[np.bool_]:
        """Return (n,) which of these faces of the gallery the model may have learned from."""
        return np.isin(ids, self.listed, assume_unique=True, invert=self.lists_unlearned)

    def find_learned_distractors(self, ids: Ids) -> NDArray[np.bool_]:
        """Return (n,) which of these faces of the gallery it may have learned from, if they are distractors now."""
        if self.distractors is None:
            return self.find_learned(ids)
        return np.isin(ids, self.distractors, assume_unique=True)

    def count_home_faces(self, ids: Ids) -> int:
        """Return how many of these faces were searched in the training, or have the same photo."""
        if self.home_faces is None:
            return int(self.find_learned(ids).sum())
        return int(np.isin(ids, self.home_faces, assume_unique=True).sum())


def find_learned_gallery(
    session: Session, installation_key: InstallationKey, loaded: LoadedIndex, ids: Ids, people: Ids
) -> LearnedGallery:
    """Find what a model has learned of a gallery, by its photos, and by other photos of the same people.

    ids, people: see `estimate_seen_share`. Where it has nothing to compare, what it returned when the deployment was
    measured last is taken.
    """
    key = loaded.key
    learned = read_learned_gallery(session, installation_key, loaded.model, key)
    if learned.is_trained_here or key.task != "identity":
        return learned
    share = estimate_seen_share(session, loaded, ids, people)
    if share is None:
        deployment = session.get(Deployment, (key.collection, key.task), populate_existing=True)
        share = read_seen_share(deployment.measurements.get(key.model_id) if deployment else None)
    return learned.with_seen(share)


def read_learned_gallery(
    session: Session, installation_key: InstallationKey, model: Model, key: IndexKey
) -> LearnedGallery:
    """Read what a model has learned of a gallery: of this collection, or of one with the same photos.

    Photos that were erased since are recognised when they are enrolled again, by the receipts of their erasures.
    A model that is not stored yet has learned from all faces of the collection that it was trained in. So has any model
    if the collection was deleted, and created again since: it may hold the same people. Of others it has learned from
    the faces that its training has read: see `read_training_data`.
    """
    learned = list_learned_changes(model.provenance)
    collection, record = session.get(Collection, key.collection), session.get(ModelRecord, model.id)
    here = [key.collection, *(collection.copied_from if collection is not None else ())]
    own = [name for name in learned if name in here]
    others = [name for name in learned if name not in here]
    home = model.provenance.get("collection", key.collection)
    photos = _LearnedPhotos(session, installation_key, list_first_changes(model.provenance), key)
    home_faces = None if home in here else photos.find_faces([home])
    if not own:
        faces = photos.find_faces(others)
        return LearnedGallery(faces, False, home_faces, 0 if _is_copy(session, key, len(faces)) else None)
    learned_change = learned.get(key.collection, 0)  # the numbers of a copy are others than those of its original
    originals = [name for name in own if name != key.collection]
    is_changed = Face.change > learned_change
    is_distractor = Face.role == DISTRACTOR
    distractors = np.union1d(photos.read_faces(is_distractor & is_changed), photos.find_faces(others, is_distractor))
    all_learned = LearnedGallery(np.empty(0, np.int64), True, home_faces, learned_change)
    made_at = math.inf if record is None else record.created_at
    if collection is not None and not read_learned_collection(model, key.collection, made_at).is_same(collection):
        return replace(all_learned, learned_change=0)
    if record is None:
        return replace(all_learned, distractors=distractors)
    is_later = (Face.created_at > model.provenance.get(READ_AT, record.created_at)) & is_changed
    if LAST_READ in model.provenance and key.collection in learned:
        is_later |= Face.pk > model.provenance[LAST_READ]
    later = photos.read_faces(is_later)
    unlearned = np.setdiff1d(later, photos.find_faces([*others, *originals], is_later))
    unlearned = np.setdiff1d(unlearned, photos.find_erased([key.collection], is_later))
    return replace(all_learned, listed=unlearned, distractors=np.setdiff1d(distractors, unlearned, assume_unique=True))


@dataclass(frozen=True, eq=False)
class _LearnedPhotos:
    """Finds the faces of a gallery whose photos a model has learned from elsewhere, or before they were erased.

    first_changes: see `list_first_changes`
    """

    session: Session
    installation_key: InstallationKey
    first_changes: Mapping[str, int]
    key: IndexKey

    def find_faces(self, collections: Sequence[str], condition: ColumnElement[bool] = IS_ANY) -> Ids:
        """Return (n,) pks, rising, of faces with a photo that one of these collections holds, or has held."""
        other = aliased(Face)
        is_there = exists().where(other.collection_id.in_(collections), other.image_id == Face.image_id)
        there = self.read_faces(condition & is_there) if collections else np.empty(0, np.int64)
        return np.union1d(there, self.find_erased(collections, condition))

    def find_erased(self, collections: Sequence[str], condition: ColumnElement[bool] = IS_ANY) -> Ids:
        """Return (n,) pks of faces with a photo that was erased from one of these collections after the training.

        So are all faces of a subject that was erased from this collection, and is enrolled again with the same id.
        """
        since = {name: self.first_changes.get(name, 0) for name in collections}
        erased = read_erased_photos(self.session, self.installation_key, self.key.collection, since)
        if not erased.hashes:
            return np.empty(0, np.int64)
        of_subject = Subject.pk == Face.subject_pk
        chosen = select(Face.pk, Face.image_id, Subject.id).outerjoin(Subject, of_subject)
        chosen = chosen.where(Face.collection_id == self.key.collection, condition)
        rows = (row for part in stream_raw_rows(self.session, chosen) for row in part)
        return np.array([pk for pk, photo, subject in rows if erased.include(photo, subject)], np.int64)

    def read_faces(self, condition: ColumnElement[bool]) -> Ids:
        """Return (n,) pks, rising, of the faces of the gallery that meet the condition."""
        chosen = select(Face.pk).where(Face.collection_id == self.key.collection, condition).order_by(Face.pk)
        parts = [np.array(rows, np.int64).reshape(-1) for rows in stream_raw_rows(self.session, chosen)]
        return np.concatenate([np.empty(0, np.int64), *parts])


def _is_copy(session: Session, key: IndexKey, shared_faces: int) -> bool:
    if not shared_faces:
        return False
    faces = session.scalar(select(func.count()).select_from(Face).where(Face.collection_id == key.collection))
    return shared_faces > MIN_SHARED_FACES * (faces or 0)
