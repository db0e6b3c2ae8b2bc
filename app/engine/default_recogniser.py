"""Choose the recogniser of new collections, and keep the built-in model that serves them with it."""

import logging
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from app.config import AUTO, DLIB_RESNET, LBP, Settings
from app.db.tables import Generation as GenerationRow
from app.engine.generations import FIRST, Generations, ensure_first, lbp_model
from ml import registry
from ml.calibration import Calibration
from ml.descriptors.dlib_resnet import REQUIREMENT
from ml.embedders.cosine import Cosine
from ml.errors import Corrupt, Unavailable
from ml.generation import Generation, Recipe
from ml.reference_calibrations import load_reference_calibration
from ml.types import Spec

log = logging.getLogger("likeness.recogniser")

DLIB_MODEL = "dlib-resnet-cosine"
BUILT_IN_MODELS = (FIRST, DLIB_MODEL)
"""Models that need no training; they cannot be archived."""
DLIB_OPTIONS: dict[str, object] = {"mirrored": True}
"""docs/decisions/0007-default-recogniser.md says why these."""
RIGHT_FIRST = {LBP: 0.4, DLIB_RESNET: 0.97}
"""The share of searches whose first match is the right person: 500 people of LFW (docs/measurements.md)."""
MAX_ID_CHARACTERS = 64


@dataclass(frozen=True, eq=False)
class DefaultRecogniser:
    """What describes the faces of a new collection.

    name: of the recogniser; generation: the built-in model that serves with it
    missing: why the recommended recogniser cannot be used; None where it can, or where the operator chose another
    """

    name: str
    generation: Generation
    missing: str | None = None

    @property
    def model(self) -> str:
        return self.generation.id

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
    wanted = settings.default_recogniser
    if wanted == LBP:
        return DefaultRecogniser(LBP, lbp_model())
    if wanted in settings.recognisers:
        return DefaultRecogniser(wanted, _registered_model(wanted, *settings.recognisers[wanted]))
    try:
        return DefaultRecogniser(DLIB_RESNET, _dlib_model())
    except (Unavailable, Corrupt) as error:
        if wanted != AUTO:
            raise
        return DefaultRecogniser(LBP, lbp_model(), missing=str(error).split("; run:")[0])


def ensure_built_in(session: Session, generations: Generations, default: DefaultRecogniser) -> None:
    """Keeps the models that a new collection may start with, and logs what is missing."""
    ensure_first(session, generations)
    if default.notice:
        log.warning("recogniser.missing %s", default.notice)
    model = default.generation
    if session.get(GenerationRow, model.id) is None or not (generations.folder / model.id).is_dir():
        generations.keep(session, model)


def cosine_model(
    model_id: str, recogniser: str, spec: Spec, calibrations: Mapping[str, Calibration] | None = None
) -> Generation:
    """A recogniser's rows compared by their angle; nothing is learned. spec: its descriptor."""
    facts = {"made": f"built in: {recogniser} with its cosine", "recogniser": recogniser}
    return Generation(model_id, Recipe((spec,)), "cosine", Cosine(), calibrations or {}, facts)


def _dlib_model() -> Generation:
    """Its weights are read here, so that what is missing shows at the start. Raises Unavailable, Corrupt."""
    registry.build("descriptors", DLIB_RESNET, **DLIB_OPTIONS).load()
    spec = Spec(DLIB_RESNET, dict(DLIB_OPTIONS))
    return cosine_model(DLIB_MODEL, DLIB_RESNET, spec, {"identity": load_reference_calibration(DLIB_RESNET)})


def _registered_model(name: str, component: str, manifest: Path) -> Generation:
    """Held to the manifest as it is now: another manifest makes another model. Raises Unavailable, Corrupt."""
    options = {
        "manifest": str(manifest),
        "pin": registry.build("descriptors", component, manifest=str(manifest)).version,
    }
    ending = f"-cosine-{options['pin'][:12]}"
    return cosine_model(name[: MAX_ID_CHARACTERS - len(ending)] + ending, name, Spec(component, options))
