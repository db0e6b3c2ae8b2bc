"""Choose the recogniser of new collections, and keep the built-in model that serves them with it."""

import logging
import shlex
import sys
from dataclasses import dataclass

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.config import AUTO, DLIB_RESNET, LBP, Settings
from app.db.session import writing
from app.db.tables import ModelRecord
from app.storage.model_cache import LBP_MODEL, ModelStore, ensure_lbp_model, make_lbp_model
from app.storage.recognisers.builtin_models import DLIB_MODEL, build_model
from app.storage.recognisers.catalogue import list_recognisers
from ml.descriptors.dlib_resnet import REQUIREMENT
from ml.errors import Unavailable
from ml.model import Model

log = logging.getLogger("likeness.recogniser")

BUILT_IN_MODELS = (LBP_MODEL, DLIB_MODEL)
"""Models that need no training; they cannot be archived."""
RIGHT_FIRST = {LBP: 0.4, DLIB_RESNET: 0.97}
"""The share of searches whose first match is the right person: 500 people of LFW (docs/research/measurements.md)."""


@dataclass(frozen=True, eq=False)
class DefaultRecogniser:
    """What describes the faces of a new collection.

    name: of the recogniser; model: the built-in model that serves with it
    missing: why the recommended recogniser cannot be used; None where it can, or where the operator chose another
    """

    name: str
    model: Model
    missing: str | None = None

    @property
    def model_id(self) -> str:
        return self.model.id

    @property
    def right_first(self) -> float | None:
        """The share of searches whose first match is the right person; None for a recogniser of the operator's."""
        return RIGHT_FIRST.get(self.name)

    @property
    def mend(self) -> str | None:
        """The command that installs what is missing, for the Python that runs this service."""
        return f"{shlex.quote(sys.executable)} -m pip install {REQUIREMENT}" if self.missing else None

    @property
    def notice(self) -> str | None:
        """What an operator should know, in a few sentences; None where nothing is missing."""
        if self.missing is None:
            return None
        return (
            f"New collections are served by LBP, a weak recogniser: {self.missing}. Expect the right person first in "
            f"about {10 * RIGHT_FIRST[LBP]:.0f} searches of 10; with {DLIB_RESNET} it is "
            f"{100 * RIGHT_FIRST[DLIB_RESNET]:.0f} of 100. Run `{self.mend}` and restart the service."
        )


def choose_default(settings: Settings) -> DefaultRecogniser:
    """The recogniser that the settings name; `auto` takes dlib_resnet where its weights are installed, else LBP.

    Raises Unavailable, Corrupt where the settings name a recogniser that cannot be built.
    """
    name = DLIB_RESNET if settings.default_recogniser == AUTO else settings.default_recogniser
    if name == LBP:
        return DefaultRecogniser(LBP, make_lbp_model())  # the list would load the network of another one
    entry = next((r for r in list_recognisers(settings) if r.name == name), None)
    if entry is not None and entry.spec is not None:
        return DefaultRecogniser(name, build_model(entry))
    missing = entry.install if entry else f"no recogniser is named {name!r}"
    if settings.default_recogniser != AUTO:
        raise Unavailable(f"LIKENESS_DEFAULT_RECOGNISER names {name}, which cannot be used: {missing}")
    return DefaultRecogniser(LBP, make_lbp_model(), missing=missing.split("; run:")[0])


def ensure_built_in(session: Session, models: ModelStore, default: DefaultRecogniser) -> None:
    """Keeps the models that a new collection may start with, and logs what is missing."""
    ensure_lbp_model(session, models)
    if default.notice:
        log.warning("recogniser.missing %s", default.notice)
    model = default.model
    if session.get(ModelRecord, model.id) is None or models.find_damage(model.id) is not None:
        models.keep(session, model)


def store_built_in(database: Engine, models: ModelStore, default: DefaultRecogniser) -> None:
    """Keep the built-in models in a transaction of their own. Several processes may start at once."""
    try:
        with writing(database) as session:
            ensure_built_in(session, models, default)
    except IntegrityError:  # another process has stored them meanwhile
        with writing(database) as session:
            ensure_built_in(session, models, default)
