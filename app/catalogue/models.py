"""A recogniser as a model: its descriptor with the distance that it was made for, and nothing learned."""

import hashlib

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.catalogue.entries import Recogniser
from app.db.tables import Generation as GenerationRow
from app.engine.generations import FIRST, Generations
from ml import registry
from ml.generation import Generation, Recipe

BUILT_IN_MODELS = {"lbp": FIRST}
"""Recognisers whose model every service has from its start."""
EMBEDDER = "cosine"


def build_model(recogniser: Recogniser) -> Generation:
    """The same recogniser gives the same id wherever it is. It is installed: see `find_recogniser`.

    Raises Unavailable, Corrupt, WrongShape where its files are not what they were.
    """
    assert recogniser.spec is not None
    recipe = Recipe((recogniser.spec,))
    (key,), (descriptor,) = recipe.keys, recipe.built
    made = f"the recogniser {recogniser.name} with its own distance"
    digest = hashlib.sha256(f"{key}\0{EMBEDDER}".encode()).hexdigest()[:16]
    name = f"{type(descriptor).__name__.lower()}-{EMBEDDER}-{digest}"
    facts = {"made": made, "recogniser": recogniser.name, "licence": recogniser.licence}
    return Generation(name, recipe, EMBEDDER, registry.build("embedders", EMBEDDER), facts=facts)


def ensure_model(session: Session, generations: Generations, recogniser: Recogniser) -> str:
    """The id of the recogniser's model, which is kept where it was not yet, and taken out of the archive.

    Raises as `build_model`.
    """
    if recogniser.name in BUILT_IN_MODELS:
        return BUILT_IN_MODELS[recogniser.name]
    model = build_model(recogniser)
    row = session.get(GenerationRow, model.id, with_for_update=True, populate_existing=True)
    if row is not None and (generations.folder / model.id).is_dir():
        row.archived_at = None
        return model.id
    try:
        with session.begin_nested():
            generations.keep(session, model)
    except IntegrityError:
        session.expire_all()  # another process kept the same one meanwhile
    return model.id
