"""Which people of a collection a model has learned from, so that it can be measured on the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Face, ModelRecord, Removal
from app.errors import NotFound
from app.learning.plan import Plan
from app.storage.model_cache import ModelStore
from ml.model import Model
from workers.training import embedder_fit, training_data
from workers.training.training_data import Snapshot, Told

HOLDOUT_SUFFIX = "-held-out"
"""Ends the name of a holdout model: the same fit as the model's, without the people held out of it."""
HELD_OUT_FACES = "held_out_faces"
"""The fact of a holdout model that lists the faces (pks) it was fitted without."""


@dataclass(frozen=True)
class Fit:
    """One fit on a collection: on all faces up to `last_face` (a pk), but for those held out.

    holdout: the share of people held out, 0 where the fit is on everybody; change: the collection's, when it was read
    """

    collection: str
    last_face: int
    held_out: frozenset[int]
    holdout: float
    change: int


@dataclass(frozen=True, eq=False)
class Exposure:
    """What is measured in a model's stead, and what that has learned from.

    measured_as: the model itself, or its holdout model where the model has learned from one of the collections
    fits: every fit on the collections that it goes back to; elsewhere: other collections that it has learned from
    """

    measured_as: Model
    fits: tuple[Fit, ...]
    elsewhere: tuple[str, ...]


def exposure(session: Session, generations: ModelStore, model: str, collections: Sequence[str]) -> Exposure:
    """Of a model to collections. Raises NotFound, ml.Corrupt, ml.Unavailable."""
    own = generations.get(model)
    lineage = list(_lineage(session, generations, own, collections, as_holdout=False))
    twin = holdout_model(generations, model)
    if twin is not None and any(isinstance(part, Fit) for part in lineage):
        lineage = list(_lineage(session, generations, own, collections, as_holdout=True))
        own = twin
    fits = tuple(part for part in lineage if isinstance(part, Fit))
    return Exposure(own, fits, tuple(dict.fromkeys(part for part in lineage if isinstance(part, str))))


def holdout_model(generations: ModelStore, model: str) -> Model | None:
    """The model's holdout model, None where nobody was held out."""
    try:
        return generations.get(model + HOLDOUT_SUFFIX)
    except NotFound:
        return None


def learned_from(session: Session, exposed: Exposure, taken: Snapshot) -> NDArray[np.bool_]:
    """(N,) faces of the snapshot whose person the measured model may have learned from.

    A person is whoever the snapshot joins. People enrolled after the model was made are new to it; where faces were
    erased since, they might be the same people again, and only those count as new who would have been held out. A photo
    that is also enrolled in another collection that the model learned from is not new to it either.
    """
    pks = np.array([face.pk for face in taken.faces], np.int64)
    collections = np.array([face.collection_id for face in taken.faces], np.str_)
    seen = np.zeros(len(pks), np.bool_)
    for fit in exposed.fits:
        here = collections == fit.collection
        held = np.isin(pks, np.fromiter(fit.held_out, np.int64, len(fit.held_out)))
        seen |= here & (pks <= fit.last_face) & ~held
        if _erased_since(session, fit):
            seen |= here & (pks > fit.last_face) & (taken.chance >= fit.holdout)
    if exposed.elsewhere:
        shared = _shared_photos(session, np.unique(collections).tolist(), exposed.elsewhere)
        seen |= np.array([_known(face, exposed.elsewhere, shared) for face in taken.faces], np.bool_)
    known: NDArray[np.bool_] = np.isin(taken.people, taken.people[seen])
    return known


def _known(face: Told, elsewhere: tuple[str, ...], shared: set[str]) -> bool:
    return face.collection_id in elsewhere or face.image_id in shared


def _lineage(
    session: Session, generations: ModelStore, model: Model, collections: Sequence[str], *, as_holdout: bool
) -> Iterator[Fit | str]:
    """Its own fit and those it went on from: on the collections, or the names of others."""
    if not model.embedder.needs_fit:
        return
    facts = model.facts
    for name in facts.get("changes", {}):
        yield _fit(session, generations, model, name, as_holdout) if name in collections else name
    start = (facts.get("plan") or {}).get("start_from")
    if start:
        further = as_holdout and holdout_model(generations, start) is not None
        yield from _lineage(session, generations, generations.get(start), collections, as_holdout=further)


def _fit(session: Session, generations: ModelStore, model: Model, collection: str, as_holdout: bool) -> Fit:
    row = session.get(ModelRecord, model.id)
    made_at = row.created_at if row is not None else np.inf
    older = select(func.max(Face.pk)).where(Face.collection_id == collection, Face.created_at <= made_at)
    last, change = session.scalar(older) or 0, int(model.facts["changes"][collection])
    born = session.scalar(select(Collection.created_at).where(Collection.id == collection))
    if born is not None and born > made_at:
        change = -1  # an earlier collection of this name was learned from: anybody may be there again
    twin = holdout_model(generations, model.id) if as_holdout else None
    if twin is None:
        return Fit(collection, last, frozenset(), 0.0, change)
    held = twin.facts.get(HELD_OUT_FACES)
    faces = frozenset(held) if held is not None else _recomputed(session, model.facts)
    return Fit(collection, last, faces, float(twin.facts["holdout"]), change)


def _recomputed(session: Session, facts: Any) -> frozenset[int]:
    """The faces held out of a training whose holdout model does not list them: as the training chose them."""
    plan = Plan.model_validate(facts["plan"])
    taken = training_data.read(session, plan, {"changes": facts["changes"], "labels": facts.get("labels", {})})
    held = embedder_fit.held_out(taken, plan.holdout)
    return frozenset(face.pk for face, out in zip(taken.faces, held, strict=True) if out)


def _erased_since(session: Session, fit: Fit) -> bool:
    if fit.change < 0:
        return True
    gone = select(Removal.pk).where(Removal.collection_id == fit.collection, Removal.change > fit.change)
    return session.scalar(gone.limit(1)) is not None


def _shared_photos(session: Session, collections: Sequence[str], elsewhere: tuple[str, ...]) -> set[str]:
    others = select(Face.image_id).where(Face.collection_id.in_(elsewhere))
    here = select(Face.image_id).where(Face.collection_id.in_(collections), Face.image_id.in_(others))
    return set(session.scalars(here))
