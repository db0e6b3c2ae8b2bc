"""A recogniser as a model: its descriptor with the distance that it was made for, and nothing learned."""

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.config import DLIB_RESNET, LBP
from app.db.tables import ModelRecord
from app.db.visibility import ALL_ROWS
from app.storage.model_cache import ModelStore, make_lbp_model
from app.storage.recognisers.catalogue import Recogniser
from ml import registry
from ml.files import hash_bytes
from ml.model import Model, Recipe
from ml.reference_calibrations import load_reference_calibration

DLIB_MODEL = "dlib-resnet-cosine"
EMBEDDER = "cosine"


def build_model(recogniser: Recogniser) -> Model:
    """The same recogniser gives the same id wherever it is. It is installed: see `find_recogniser`.

    Raises Unavailable, Corrupt, WrongShape where its files are not what they were.
    """
    assert recogniser.spec is not None
    if recogniser.name == LBP:
        return make_lbp_model()
    provenance = {
        "made": f"the recogniser {recogniser.name} with its own distance",
        "recogniser": recogniser.name,
        "licence": recogniser.licence,
    }
    embedder = registry.build("embedders", EMBEDDER)
    if recogniser.name == DLIB_RESNET:
        known = {"identity": load_reference_calibration(DLIB_RESNET)}
        return Model(DLIB_MODEL, Recipe((recogniser.spec,)), EMBEDDER, embedder, known, provenance)
    recipe = Recipe((recogniser.spec,))
    (key,), (descriptor,) = recipe.keys, recipe.built
    digest = hash_bytes(f"{key}\0{EMBEDDER}".encode())[:16]
    name = f"{type(descriptor).__name__.lower()}-{EMBEDDER}-{digest}"
    return Model(name, recipe, EMBEDDER, embedder, provenance=provenance)


def ensure_model(session: Session, models: ModelStore, recogniser: Recogniser) -> str:
    """The id of the recogniser's model, which is kept where it was not yet, and taken out of the archive.

    Raises as `build_model`.
    """
    return keep_model(session, models, build_model(recogniser))


def keep_model(session: Session, models: ModelStore, model: Model) -> str:
    """Keep a built-in model unless it is kept already and whole, take it out of the archive, and return its id.

    It may be kept for collections that the session does not see.
    """
    row = session.get(ModelRecord, model.id, with_for_update=True, populate_existing=True, execution_options=ALL_ROWS)
    if row is not None and models.find_damage(model.id) is None:
        row.archived_at = None
        return model.id
    try:
        with session.begin_nested():
            models.keep(session, model)
    except IntegrityError:
        session.expire_all()  # another process kept the same one meanwhile
    return model.id
