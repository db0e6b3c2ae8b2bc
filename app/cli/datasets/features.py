"""Compute the descriptors of a whole data set with a progress bar, and cache the costly ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import typer
from filelock import FileLock

from app.cli.client import open_progress
from ml import registry
from ml.descriptors.base import Descriptor
from ml.descriptors.common.crop_descriptors import list_crop_descriptors
from ml.descriptors.common.file_backed import find_descriptor, manifest_types
from ml.errors import LikenessError
from ml.files import atomic_write, hash_bytes
from ml.model import Recipe
from ml.types import CropKind, Crops, Ids, Rows, Spec

CROPS_PER_BLOCK = 512
MAX_VOCABULARY_FACES = 2000
"""The number of faces that a vocabulary is learned from."""


def describe_crops(recipe: Recipe, crops: Mapping[CropKind, Crops], cache: Path) -> Rows:
    """Return the (N, dim) descriptors of a recipe, side by side."""
    descriptors = zip(recipe.descriptors, recipe.built, recipe.keys, strict=True)
    parts = [
        load_or_describe(spec.name, built, crops[built.crop], cache / f"{spec.name}-{key}.npy")
        for spec, built, key in descriptors
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def load_or_describe(name: str, built: Descriptor, crops: Crops, path: Path, keep: bool = False) -> Rows:
    """Return the (N, dim) float32 rows of a descriptor. Those of a costly one are cached at `path` in half precision.

    keep: whether to cache those of a cheap one, too. While another process computes them, this one waits.
    """
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            cached: Rows = np.load(path)
            return cached.astype(np.float32, copy=False)
        return _describe_in_blocks(name, built, crops, path if keep or built.is_costly else None)


def _describe_in_blocks(name: str, built: Descriptor, crops: Crops, kept: Path | None) -> Rows:
    rows = np.empty((len(crops), built.dim), np.float16 if built.is_costly else np.float32)
    with open_progress() as shown:
        for at in shown.track(range(0, len(crops), CROPS_PER_BLOCK), description=name):
            rows[at : at + CROPS_PER_BLOCK] = built.describe(np.ascontiguousarray(crops[at : at + CROPS_PER_BLOCK]))
    if kept is not None:
        with atomic_write(kept) as file:
            np.save(file, rows)
    return rows.astype(np.float32, copy=False)


def learn_options(name: str, crops: Crops, among: Ids, options_file: Path, seed: int = 0) -> dict[str, Any]:
    """Return the options of a descriptor that learns from crops without labels, cached in `options_file`.

    crops: (N, ...) of the whole set; among: positions of the faces that it may see
    """
    with FileLock(options_file.with_suffix(".lock")):
        if not options_file.exists():
            some = np.sort(
                np.random.default_rng(seed).choice(among, min(MAX_VOCABULARY_FACES, len(among)), replace=False)
            )
            kind = registry.component("descriptors", name)
            learned_options = json.dumps(kind.learn(np.ascontiguousarray(crops[some]), options_file.parent, seed))
            with atomic_write(options_file) as file:
                file.write(learned_options.encode())
    options: dict[str, Any] = json.loads(options_file.read_text())
    return options


def build_recipe(named: str, crops: Mapping[CropKind, Crops], among: Ids, cache: Path, seed: int = 0) -> Recipe:
    """Build the recipe of `lbp`, the path of a manifest, or several joined by "+".

    among: positions of the faces from which a descriptor may learn
    Raises typer.BadParameter.
    """
    return Recipe(tuple(_build_spec(one, crops, among, cache, seed) for one in named.split("+")))


def _build_spec(named: str, crops: Mapping[CropKind, Crops], among: Ids, cache: Path, seed: int) -> Spec:
    if named.endswith(".json"):
        return Spec(_find_component(Path(named)), {"manifest": named})
    files = manifest_types()
    if named in files or named not in list_crop_descriptors():
        known = ", ".join(n for n in list_crop_descriptors() if n not in files)
        raise typer.BadParameter(f"{named} is none of {known}, or a manifest FILE.json", param_hint="--descriptor")
    built = registry.build("descriptors", named)
    if built.is_ready:
        return Spec(named)
    seen = hash_bytes(among.astype("<i8").tobytes())[:16]
    return Spec(named, learn_options(named, crops[built.crop], among, cache / f"{named}-{seen}-{seed}.json", seed))


def _find_component(manifest: Path) -> str:
    """Return the descriptor that a manifest is for. Raises typer.BadParameter."""
    try:
        return find_descriptor(manifest)
    except LikenessError as error:
        raise typer.BadParameter(f"{manifest}: {error}", param_hint="--descriptor") from error
