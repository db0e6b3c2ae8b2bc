"""Find out which people of a collection a model has learned from, so that it can be measured on the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Face, Removal
from app.galleries.learned_collections import (
    COLLECTIONS_CREATED_AT,
    LearnedCollection,
    read_learned_collection,
    read_model_creation,
)
from app.learning.plan import Plan
from app.storage.model_cache import ModelStore
from ml.model import Model
from workers.training import training_data
from workers.training.split import choose_held_out_faces
from workers.training.training_data import FaceRecord, TrainingData

HELD_OUT_FACES = "held_out_faces"
"""The fact of a holdout model that lists the pks of the faces it was fitted without."""


@dataclass(frozen=True)
class CollectionFit:
    """One fit on the faces of a collection up to `last_face` (a pk), without those held out.

    holdout: the share of people held out, 0 where the fit is on everybody
    change: the change number of the collection when it was read, -1 where it was an earlier collection of the same id,
        whose people may have been enrolled again
    """

    collection: str
    last_face: int
    held_out: frozenset[int]
    holdout: float
    change: int


@dataclass(frozen=True, eq=False)
class Exposure:
    """What a model has learned from.

    measured_as: the model to measure: the model itself, or its holdout model if it has learned from the collections
    fits: every fit on the collections that it goes back to; elsewhere: other collections that it has learned from
    """

    measured_as: Model
    fits: tuple[CollectionFit, ...]
    elsewhere: tuple[LearnedCollection, ...]

    @property
    def names_elsewhere(self) -> tuple[str, ...]:
        return tuple(collection.name for collection in self.elsewhere)


def trace_exposure(session: Session, model_store: ModelStore, model: str, collections: Sequence[str]) -> Exposure:
    """Trace what a model has learned from these collections. Raises NotFound, ml.Corrupt, ml.Unavailable."""
    own, own_holdout = model_store.get(model), model_store.find_holdout(model)
    lineage = _iterate_lineage(model_store, own, own_holdout)
    learned = [(part, holdout, name) for part, holdout in lineage for name in part.provenance.get("changes", {})]
    measured_as = own
    if own_holdout is not None and any(name in collections for _, _, name in learned):
        measured_as = own_holdout
    fits = [
        _read_fit(session, part, None if measured_as is own else holdout, name)
        for part, holdout, name in learned
        if name in collections
    ]
    for copy in session.scalars(select(Collection).where(Collection.id.in_(collections))):
        fits += [_read_fit_of_copy(session, part, copy) for part, _, name in learned if name in copy.copied_from]
    elsewhere = {
        name: read_learned_collection(part, name, read_model_creation(session, part))
        for part, _, name in reversed(learned)  # of two collections of one name, the one that was learned last
        if name not in collections
    }
    return Exposure(measured_as, tuple(fits), tuple(elsewhere.values()))


def find_learned_faces(session: Session, exposure: Exposure, data: TrainingData) -> NDArray[np.bool_]:
    """Return (N,) the faces of the data whose person the measured model may have learned from.

    People enrolled after the model was made are new to it. If faces were erased since, they might be the same people
    again; then only those count as new who would have been held out. A photo that is also enrolled in another
    collection that the model has learned from is not new to it either.
    """
    pks = np.array([face.pk for face in data.faces], np.int64)
    collections = np.array([face.collection_id for face in data.faces], np.str_)
    seen = np.zeros(len(pks), np.bool_)
    for fit in exposure.fits:
        here = collections == fit.collection
        held = np.isin(pks, np.fromiter(fit.held_out, np.int64, len(fit.held_out)))
        seen |= here & (pks <= fit.last_face) & ~held
        if _was_erased_since(session, fit):
            seen |= here & (pks > fit.last_face) & (data.holdout_draw >= fit.holdout)
    if exposure.elsewhere:
        shared = _list_shared_photos(session, np.unique(collections).tolist(), exposure.names_elsewhere)
        seen |= np.array([_is_known(face, exposure.names_elsewhere, shared) for face in data.faces], np.bool_)
    known: NDArray[np.bool_] = np.isin(data.people, data.people[seen])
    return known


def _is_known(face: FaceRecord, elsewhere: tuple[str, ...], shared: set[str]) -> bool:
    return face.collection_id in elsewhere or face.image_id in shared


def _iterate_lineage(
    model_store: ModelStore, model: Model, holdout: Model | None
) -> Iterator[tuple[Model, Model | None]]:
    """Yield the model and those that it continued, each with its holdout model while the ones before have theirs."""
    while model.embedder.needs_fit:
        yield model, holdout
        start = (model.provenance.get("plan") or {}).get("start_from")
        if not start:
            return
        holdout = model_store.find_holdout(start) if holdout is not None else None
        model = model_store.get(start)


def _read_fit(session: Session, model: Model, holdout: Model | None, collection: str) -> CollectionFit:
    made_at = read_model_creation(session, model)
    share = float(holdout.provenance["holdout"]) if holdout is not None else 0.0
    if _is_recreated(session, model, collection, made_at):
        return CollectionFit(collection, 0, frozenset(), share, change=-1)
    last, change = _find_last_face(session, collection, made_at), int(model.provenance["changes"][collection])
    if holdout is None:
        return CollectionFit(collection, last, frozenset(), share, change)
    pks = holdout.provenance.get(HELD_OUT_FACES)
    faces = frozenset(pks) if pks is not None else _recompute_held_out(session, model.provenance)
    return CollectionFit(collection, last, faces, share, change)


def _read_fit_of_copy(session: Session, model: Model, copy: Collection) -> CollectionFit:
    """Return the fit on a collection as one on its copy, whose faces have other numbers: as if nobody was held out.

    Its changes have other numbers too, so that each removal there may be one since.
    """
    last = _find_last_face(session, copy.id, read_model_creation(session, model))
    return CollectionFit(copy.id, last, frozenset(), 0.0, change=0)


def _find_last_face(session: Session, collection: str, made_at: float) -> int:
    """Return the largest pk of the faces that were enrolled by then, 0 if none were."""
    older = select(func.max(Face.pk)).where(Face.collection_id == collection, Face.created_at <= made_at)
    return session.scalar(older) or 0


def _is_recreated(session: Session, model: Model, collection: str, made_at: float) -> bool:
    """Whether the model has learned from an earlier collection of the same id. made_at: when it was stored"""
    row = session.get(Collection, collection)
    return row is not None and not read_learned_collection(model, collection, made_at).is_same(row)


def _recompute_held_out(session: Session, model_facts: Mapping[str, Any]) -> frozenset[int]:
    """Choose again the faces held out of a holdout model of an earlier version, which does not list them.

    Some who were held out may be missing, since such versions held out more where labels joined people.
    """
    plan = Plan.model_validate(model_facts["plan"])
    at = {name: model_facts.get(name, {}) for name in ("changes", COLLECTIONS_CREATED_AT, "labels")}
    data = training_data.read_training_data(session, plan, at)
    held = choose_held_out_faces(data, plan.holdout, min_strangers=0)
    return frozenset(face.pk for face in data.select_faces(held))


def _was_erased_since(session: Session, fit: CollectionFit) -> bool:
    if fit.change < 0:  # all faces of that fit were erased with their collection
        return True
    removals = select(Removal.pk).where(Removal.collection_id == fit.collection, Removal.change > fit.change)
    return session.scalar(removals.limit(1)) is not None


def _list_shared_photos(session: Session, collections: Sequence[str], elsewhere: tuple[str, ...]) -> set[str]:
    others = select(Face.image_id).where(Face.collection_id.in_(elsewhere))
    here = select(Face.image_id).where(Face.collection_id.in_(collections), Face.image_id.in_(others))
    return set(session.scalars(here))
