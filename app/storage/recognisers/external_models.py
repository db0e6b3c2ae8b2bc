"""The built-in models of imported vectors: they compare the vectors as they are, and their embeddings are the vectors.

See docs/decisions/0037-imported-vectors.md.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from app.db.visibility import EXTERNAL_MODELS
from ml import registry
from ml.descriptors.external import External
from ml.model import Model, Recipe
from ml.types import Spec

COMPONENT = "external"
OPTIONS = ("recogniser", "size", "metric")


def make_external_model(descriptor: External) -> Model:
    """Build the model of a descriptor. Its id is the same wherever the descriptor is."""
    options = {name: value for name, value in asdict(descriptor).items() if name in OPTIONS}
    recipe = Recipe((Spec(COMPONENT, options),))
    embedder = "cosine" if descriptor.metric == "cosine" else "l2"
    provenance = {"made": f"built in: imported vectors ({descriptor.recogniser}) with their own distance"}
    return Model(name_external_model(recipe), recipe, embedder, registry.build("embedders", embedder), {}, provenance)


def name_external_model(recipe: Recipe) -> str:
    """Return the id of the model whose embeddings are the vectors that this recipe reads."""
    return f"{EXTERNAL_MODELS}{recipe.dim}-{recipe.keys[0][:8]}"


def read_external(manifest: Mapping[str, Any]) -> External | None:
    """Return the descriptor of imported vectors that a model's manifest names; None if it names another one."""
    [first, *_] = manifest["descriptors"]
    return External(**first["options"]) if first["name"] == COMPONENT else None
