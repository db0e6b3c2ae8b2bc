"""Generations by id: loaded once, kept while they are used; and the one that needs no data."""

import threading
from dataclasses import replace
from pathlib import Path

from sqlalchemy.orm import Session

from app.db.tables import ModelRecord
from app.errors import NotFound
from app.storage.recognisers.manifests import find_manifests
from ml.embedders.l2 import L2
from ml.model import Model, Recipe, load_model, save_model

FIRST = "lbp-l2"
HOLDOUT_SUFFIX = "-held-out"
"""Ends the name of a holdout model: the same fit as the model's, without the people held out of it."""
MAX_CACHED_MODELS = 8


class ModelStore:
    """The folder of generations, read through a small cache. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._loaded: dict[str, Model] = {}

    def get(self, model_id: str) -> Model:
        """Raises NotFound, ml.Corrupt."""
        with self._lock:
            model = self._loaded.pop(model_id, None)
            if model is None:
                path = self.folder / model_id
                if not path.is_dir():
                    raise NotFound(f"no model {model_id}")
                model = load_model(path)
                model = replace(model, recipe=find_manifests(model.recipe, self.folder.parent))
            self._loaded[model_id] = model  # the youngest stands last
            while len(self._loaded) > MAX_CACHED_MODELS:
                self._loaded.pop(next(iter(self._loaded)))
            return model

    def find_holdout(self, model_id: str) -> Model | None:
        """Return the model's holdout model, or None where nobody was held out. Raises ml.Corrupt."""
        try:
            return self.get(model_id + HOLDOUT_SUFFIX)
        except NotFound:
            return None

    def keep(self, session: Session, generation: Model, **row: object) -> None:
        """Writes its folder, then its row."""
        save_model(generation, self.folder)
        session.merge(ModelRecord(id=generation.id, manifest=generation.manifest(), **row))


def lbp_model() -> Model:
    """The model that needs no data and no file: LBP with its own distance."""
    return Model(FIRST, Recipe(), "l2", L2(), provenance={"made": "built in: LBP with its own distance"})


def ensure_first(session: Session, generations: ModelStore) -> None:
    """Keeps the model that needs no data."""
    if session.get(ModelRecord, FIRST) is None or not (generations.folder / FIRST).is_dir():
        generations.keep(session, lbp_model())
