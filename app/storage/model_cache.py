"""Save models, load them by id through a cache, and keep the built-in LBP model."""

import threading
from dataclasses import replace
from pathlib import Path

from sqlalchemy.orm import Session

from app.db.tables import ModelRecord
from app.errors import NotFound
from app.storage.recognisers.manifests import find_manifests
from ml.embedders.l2 import L2
from ml.model import Model, Recipe, load_model, save_model

LBP_MODEL = "lbp-l2"
HOLDOUT_SUFFIX = "-held-out"
"""Ends the name of a holdout model: the same fit as the model's, without the people held out of it."""
MAX_CACHED_MODELS = 8


class ModelStore:
    """The folder of models, read through a small cache. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._loaded: dict[str, Model] = {}

    def get(self, model_id: str) -> Model:
        """Return the model with this id. Raises NotFound, or ml.Corrupt if its files were altered."""
        with self._lock:
            model = self._loaded.pop(model_id, None)
            if model is None:
                path = self.folder / model_id
                if not path.is_dir():
                    raise NotFound(f"no model {model_id}")
                model = load_model(path)
                model = replace(model, recipe=find_manifests(model.recipe, self.folder.parent))
            self._loaded[model_id] = model  # the model used last comes last
            while len(self._loaded) > MAX_CACHED_MODELS:
                self._loaded.pop(next(iter(self._loaded)))
            return model

    def find_holdout(self, model_id: str) -> Model | None:
        """Return the model's holdout model, or None where nobody was held out. Raises ml.Corrupt."""
        try:
            return self.get(model_id + HOLDOUT_SUFFIX)
        except NotFound:
            return None

    def keep(self, session: Session, model: Model, **columns: object) -> None:
        """Write the model's folder, then its row. columns: further columns of the row."""
        save_model(model, self.folder)
        session.merge(ModelRecord(id=model.id, manifest=model.manifest(), **columns))


def make_lbp_model() -> Model:
    """Build the model that needs no data and no file: LBP with its own distance."""
    return Model(LBP_MODEL, Recipe(), "l2", L2(), provenance={"made": "built in: LBP with its own distance"})


def ensure_lbp_model(session: Session, models: ModelStore) -> None:
    """Save the LBP model unless it is stored already."""
    if session.get(ModelRecord, LBP_MODEL) is None or not (models.folder / LBP_MODEL).is_dir():
        models.keep(session, make_lbp_model())
