"""Save models, load them by id through a cache, and keep the built-in LBP model."""

import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from sqlalchemy.orm import Session

from app.db.tables import ModelRecord
from app.errors import Conflict, NotFound
from app.storage.recognisers.component_files import find_recipe_files
from ml.embedders.l2 import L2
from ml.errors import Corrupt
from ml.model import Model, Recipe, Sign, load_model, read_manifest, save_model

LBP_MODEL = "lbp-l2"
HOLDOUT_SUFFIX = "-held-out"
"""Ends the name of a holdout model: the same fit as the model's, without the people held out of it."""
MAX_CACHED_MODELS = 8
DAMAGE_CHECK_SECONDS = 60.0

log = logging.getLogger("likeness.storage")


class ModelStore:
    """The folder of models, read through a small cache. Safe to use from several threads."""

    def __init__(self, folder: Path, sign: Sign) -> None:
        self.folder, self.sign = folder, sign
        self._damage: dict[str, tuple[float, str | None]] = {}  # model -> monotonic time of the check, what it said
        self._lock = threading.Lock()
        self._loaded: dict[str, Model] = {}

    def get(self, model_id: str) -> Model:
        """Return the model with this id. Raises NotFound, or ml.Corrupt if its files or its signature were altered."""
        with self._lock:
            model = self._loaded.pop(model_id, None)
            if model is None:
                path = self.folder / model_id
                if not path.is_dir():
                    raise NotFound(f"no model {model_id}")
                model = load_model(path, self.sign)
                if model.id != model_id:
                    raise Corrupt(f"the folder of the model {model_id} holds the model {model.id}")
                model = replace(model, recipe=find_recipe_files(model.recipe, self.folder.parent))
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

    def find_damage(self, model_id: str) -> str | None:
        """Return what is wrong with the stored files of a model; None if nothing is. A minute passes between checks."""
        checked_at, damage = self._damage.get(model_id, (float("-inf"), None))
        if time.monotonic() - checked_at > DAMAGE_CHECK_SECONDS:
            try:
                manifest = read_manifest(self.folder / model_id, self.sign)
                damage = None if manifest["id"] == model_id else f"its folder holds the model {manifest['id']}"
            except Corrupt as error:
                damage = str(error)
            self._damage[model_id] = time.monotonic(), damage
        return damage

    def check(self, model_id: str) -> None:
        """Check the stored files of a model now. Raises Conflict (ModelDamaged)."""
        self._damage.pop(model_id, None)
        damage = self.find_damage(model_id)
        if damage is not None:
            raise Conflict(
                f"model {model_id} is damaged and cannot serve: {damage}. Restore its folder from a backup, or publish "
                "another model",
                code="ModelDamaged",
            )

    def save(self, model: Model) -> None:
        """Write the model's folder, signed. One that exists is kept, unless it is damaged: then it is set aside.

        Raises OSError.
        """
        path = self.folder / model.id
        self.folder.stat()  # a home that was moved away is not made anew
        self._damage.pop(model.id, None)
        if path.is_dir() and self.find_damage(model.id) is not None:
            with suppress(FileNotFoundError):  # another process has set it aside meanwhile
                path.rename(self.folder / f".damaged-{model.id}-{uuid4().hex[:8]}")
                log.warning("model.set_aside model=%s", model.id)
        save_model(model, self.folder, self.sign)
        self._damage.pop(model.id, None)

    def keep(self, session: Session, model: Model, **columns: object) -> None:
        """Write the model's folder, then its row. columns: further columns of the row."""
        self.save(model)
        session.merge(ModelRecord(id=model.id, manifest=model.manifest(), **columns))


def make_lbp_model() -> Model:
    """Build the model that needs no data and no file: LBP with its own distance."""
    return Model(LBP_MODEL, Recipe(), "l2", L2(), provenance={"made": "built in: LBP with its own distance"})


def ensure_lbp_model(session: Session, models: ModelStore) -> None:
    """Save the LBP model unless it is stored already and whole."""
    if session.get(ModelRecord, LBP_MODEL) is None or models.find_damage(LBP_MODEL) is not None:
        models.keep(session, make_lbp_model())
