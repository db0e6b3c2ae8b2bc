"""What is computed of photos before anything of them is written: where their faces lie, and what is kept for later."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.session import reading
from app.db.tables import Deployment
from app.enrolment.photo_analysis import AnalysedPhoto
from app.resources import Resources
from app.storage.stored_faces import make_cache_files
from ml.model import Recipe
from ml.types import Rows

Served = tuple[str, str]
"""A model and a task that it serves in a collection."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """All faces of some photos, one after the other.

    vectors: where they lie, for whatever serves; files: what dear descriptors said of them, to be kept beside the crops
    """

    vectors: dict[Served, Rows]
    files: Sequence[tuple[str, bytes]] = ()


def served(session: Session, collection_id: str) -> set[Served]:
    """Every model that champions, challenges or came before, with its task."""
    rows = session.scalars(select(Deployment).where(Deployment.collection_id == collection_id))
    return {(m, d.task) for d in rows for m in (d.champion, d.challenger, d.previous) if m is not None}


def prepared(resources: Resources, collection_id: str, looked: Sequence[AnalysedPhoto]) -> Prepared:
    """Each descriptor is asked once, whichever models have it. Raises NotFound."""
    with reading(resources.database) as session:
        get_collection(session, collection_id)
        wanted = served(session, collection_id)
    if not any(photo.faces for photo in looked):
        return Prepared({})
    descriptions = _Descriptions(looked)
    vectors = {}
    for model, task in wanted:
        loaded = resources.models.get(model)
        vectors[model, task] = loaded.embed(descriptions.of(loaded.recipe), task)
    return Prepared(vectors, descriptions.files)


class _Descriptions:
    """By the key of the descriptor."""

    def __init__(self, looked: Sequence[AnalysedPhoto]) -> None:
        self.names = [(photo.image_id, number) for photo in looked for number in photo.faces]
        self.faces = [face for photo in looked for face in photo.faces.values()]
        self.rows: dict[str, Rows] = {}
        self.files: list[tuple[str, bytes]] = []

    def of(self, recipe: Recipe) -> Rows:
        for descriptor, key in zip(recipe.built, recipe.keys, strict=True):
            if key in self.rows:
                continue
            self.rows[key] = descriptor.describe(np.stack([f.crops[descriptor.crop] for f in self.faces]))
            if descriptor.is_costly:
                self.files += make_cache_files(key, self.names, self.rows[key])
        return np.concatenate([self.rows[key] for key in recipe.keys], axis=1)
