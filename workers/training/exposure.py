"""Find out which people of a collection a model has learned from, so that it can be measured on the others."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Erasure, Face, Removal
from app.galleries.erasure_receipts import ErasedPhotos, read_erased_photos
from app.galleries.learned_collections import (
    COLLECTIONS_CREATED_AT,
    LearnedCollection,
    read_learned_collection,
    read_model_creation,
)
from app.learning.plan import Plan
from app.storage.installation_key import InstallationKey
from app.storage.model_cache import ModelStore
from ml.model import Model
from workers.training import training_data
from workers.training.split import choose_held_out_faces
from workers.training.training_data import TrainingData

HELD_OUT_FACES = "held_out_faces"
"""The fact of a holdout model that lists the pks of the faces it was fitted without."""


@dataclass(frozen=True)
class CollectionFit:
    """One fit on the faces of a collection up to `last_face` (a pk), without those held out.

    last_face: infinity where it was an earlier collection of the same id, whose people may have been enrolled again
    holdout: the share of people held out, 0 where the fit is on everybody
    change: the change number of the collection when it was read
    restored: the faces of an earlier collection that were restored into this one, where they have other numbers
    """

    collection: str
    last_face: float
    held_out: frozenset[int]
    holdout: float
    change: int
    restored: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Exposure:
    """What a model has learned from.

    measured_as: the model to measure: the model itself, or its holdout model if it has learned from the collections
    fits: every fit on the collections that it goes back to; elsewhere: other collections that it has learned from
    changes_elsewhere: other collection -> the change up to which the first fit on it has learned from it
    """

    measured_as: Model
    fits: tuple[CollectionFit, ...]
    elsewhere: tuple[LearnedCollection, ...]
    changes_elsewhere: Mapping[str, int]


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
    first_changes = {name: int(part.provenance["changes"][name]) for part, _, name in learned if name in elsewhere}
    return Exposure(measured_as, tuple(fits), tuple(elsewhere.values()), first_changes)


def find_learned_faces(
    session: Session, installation_key: InstallationKey, exposure: Exposure, data: TrainingData
) -> NDArray[np.bool_]:
    """Return (N,) the faces of the data whose person the measured model may have learned from.

    People enrolled after the model was made are new to it. If faces were erased since, they might be the same people
    again; then only those count as new who would have been held out, and of whom no photo, nor the name, is known from
    the erasure of somebody who was not. In a collection that was deleted and restored, those of before count as new who
    would have been held out, and in one that was made anew, nobody. A photo that is enrolled in another collection that
    the model has learned from, or was, is not new to it either.
    """
    pks = np.array([face.pk for face in data.faces], np.int64)
    seen = np.zeros(len(pks), np.bool_)
    for fit in exposure.fits:
        here = data.lies_in(fit.collection)
        held = np.isin(pks, list(fit.held_out)) | (np.isin(pks, list(fit.restored)) & (data.holdout_draw < fit.holdout))
        later = here & (pks > fit.last_face)
        seen |= here & ~later & ~held
        if later.any() and _was_erased_since(session, fit):
            seen |= later & (data.holdout_draw >= fit.holdout)
            erased = _read_erased(session, installation_key, fit)
            seen |= later & (_find_erased(data, erased) if erased.lists_all else True)
    if exposure.elsewhere:
        seen |= _find_known_elsewhere(session, installation_key, exposure, data)
    known: NDArray[np.bool_] = np.isin(data.people, data.people[seen])
    return known


def _read_erased(session: Session, installation_key: InstallationKey, fit: CollectionFit) -> ErasedPhotos:
    """Read what was erased after a fit, less the erasures of nobody but people held out of it."""
    removals = select(Removal.change, Removal.face_pk)
    removals = removals.where(Removal.collection_id == fit.collection, Removal.change > fit.change)
    of_held_out, of_others = set[int](), set[int]()
    for change, pk in session.execute(removals.execution_options(yield_per=1000)):
        (of_held_out if pk in fit.held_out else of_others).add(change)
    created_at = session.scalar(select(Collection.created_at).where(Collection.id == fit.collection))
    is_here = Erasure.collection_created_at == created_at
    since = {fit.collection: fit.change}
    return read_erased_photos(
        session, installation_key, fit.collection, since, is_here, without=of_held_out - of_others
    )


def _find_erased(data: TrainingData, erased: ErasedPhotos) -> NDArray[np.bool_]:
    return np.array([erased.include(face.image_id, face.subject_id) for face in data.faces], np.bool_)


def _find_known_elsewhere(
    session: Session, installation_key: InstallationKey, exposure: Exposure, data: TrainingData
) -> NDArray[np.bool_]:
    """Return (N,) which faces lie in the other collections of the model, or have a photo that does, or did."""
    changes = exposure.changes_elsewhere
    shared = _list_shared_photos(session, data.collections, list(changes))
    erased = read_erased_photos(session, installation_key, "", changes)
    is_known = (
        face.collection_id in changes or face.image_id in shared or erased.include(face.image_id, None)
        for face in data.faces
    )
    return np.fromiter(is_known, np.bool_, len(data.faces))


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
    change = int(model.provenance["changes"][collection])
    share = float(holdout.provenance["holdout"]) if holdout is not None else 0.0
    if _is_recreated(session, model, collection, made_at):
        older = select(Face.pk).where(Face.collection_id == collection, Face.created_at <= made_at)
        return CollectionFit(collection, math.inf, frozenset(), share, change, frozenset(session.scalars(older)))
    last = _find_last_face(session, collection, made_at)
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
    at = {name: model_facts.get(name, {}) for name in ("changes", COLLECTIONS_CREATED_AT, training_data.LABELS)}
    data = training_data.read_training_data(session, plan, at)
    held = choose_held_out_faces(data, plan.holdout, min_strangers=0)
    return frozenset(face.pk for face in data.select_faces(held))


def _was_erased_since(session: Session, fit: CollectionFit) -> bool:
    removals = select(Removal.pk).where(Removal.collection_id == fit.collection, Removal.change > fit.change)
    return session.scalar(removals.limit(1)) is not None


def _list_shared_photos(session: Session, collections: Sequence[str], elsewhere: Sequence[str]) -> set[str]:
    others = select(Face.image_id).where(Face.collection_id.in_(elsewhere))
    here = select(Face.image_id).where(Face.collection_id.in_(collections), Face.image_id.in_(others))
    return set(session.scalars(here))
