"""Describe and embed the faces of photos, before any row is written."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.session import reading
from app.db.tables import Deployment
from app.enrolment.photo_analysis import AnalysedPhoto
from app.errors import NotFound
from app.resources import Resources
from app.storage.stored_faces import make_cache_files
from ml.errors import Corrupt, Unavailable
from ml.model import Recipe
from ml.types import Rows

log = logging.getLogger("likeness.enrolment")

ModelTask = tuple[str, str]
"""A model and a task that it serves in a collection."""


@dataclass(frozen=True, eq=False)
class PreparedPhotos:
    """The embeddings of all faces of some photos.

    vectors: for each model and task of the collection the (n, dim) embeddings, in the order of photos and faces
    files: names and bytes of cached descriptors, to be stored beside the crops
    left_out: challengers and previous models that cannot be loaded
    """

    vectors: dict[ModelTask, Rows]
    files: Sequence[tuple[str, bytes]] = ()
    left_out: frozenset[ModelTask] = frozenset()


def list_models_to_embed(session: Session, collection_id: str) -> set[ModelTask]:
    """Return every model that is champion, challenger or previous in the collection, with its task."""
    rows = session.scalars(select(Deployment).where(Deployment.collection_id == collection_id))
    return {(m, d.task) for d in rows for m in (d.champion, d.challenger, d.previous) if m is not None}


def list_champions(session: Session, collection_id: str) -> set[ModelTask]:
    """Return the champions of the collection, each with its task."""
    rows = session.execute(
        select(Deployment.champion, Deployment.task).where(Deployment.collection_id == collection_id)
    )
    return {(champion, task) for champion, task in rows}


def prepare_photos(resources: Resources, collection_id: str, photos: Sequence[AnalysedPhoto]) -> PreparedPhotos:
    """Embed the faces for every model of the collection. Each descriptor is computed once.

    A challenger or previous model that cannot be loaded is left out; rolling back embeds what it then lacks.
    Raises NotFound, and ml.Corrupt or ml.Unavailable if a champion cannot be loaded.
    """
    with reading(resources.database) as session:
        get_collection(session, collection_id)
        models, champions = list_models_to_embed(session, collection_id), list_champions(session, collection_id)
    if not any(photo.faces for photo in photos):
        return PreparedPhotos({})
    descriptions = _Descriptions(photos)
    vectors, left_out = {}, set()
    for model, task in models:
        try:
            loaded = resources.models.get(model)
            loaded.recipe.built  # noqa: B018  # loads the networks of its descriptors
        except (Corrupt, Unavailable, NotFound) as error:
            if (model, task) in champions:
                raise
            left_out.add((model, task))
            log.warning("model.left_out collection=%s model=%s error=%s", collection_id, model, error)
            continue
        vectors[model, task] = loaded.embed(descriptions.of(loaded.recipe), task)
    return PreparedPhotos(vectors, descriptions.files, frozenset(left_out))


class _Descriptions:
    """The descriptors of some faces, each computed when a recipe first needs it. rows: descriptor key -> (n, d)"""

    def __init__(self, photos: Sequence[AnalysedPhoto]) -> None:
        self.names = [(photo.image_id, number) for photo in photos for number in photo.faces]
        self.faces = [face for photo in photos for face in photo.faces.values()]
        self.rows: dict[str, Rows] = {}
        self.files: list[tuple[str, bytes]] = []

    def of(self, recipe: Recipe) -> Rows:
        """Return the (n, d) descriptors of a recipe, side by side."""
        for descriptor, key in zip(recipe.built, recipe.keys, strict=True):
            if key in self.rows:
                continue
            self.rows[key] = descriptor.describe(np.stack([f.crops[descriptor.crop] for f in self.faces]))
            if descriptor.is_costly:
                self.files += make_cache_files(key, self.names, self.rows[key])
        return np.concatenate([self.rows[key] for key in recipe.keys], axis=1)
