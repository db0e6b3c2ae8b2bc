"""Descriptors of a whole photo set, computed under a bar, and kept where they are dear."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import typer
from filelock import FileLock

from app.cli.client import bar
from app.storage.atomic_write import atomic_write
from ml import registry
from ml.descriptors.base import Descriptor
from ml.descriptors.common.file_backed import find_descriptor, manifest_types
from ml.errors import LikenessError
from ml.model import Recipe
from ml.types import CropKind, Crops, Ids, Rows, Spec

BLOCK = 512
WORDS = 2000
"""Faces that a vocabulary is learned from."""


def describe(recipe: Recipe, crops: Mapping[CropKind, Crops], cache: Path) -> Rows:
    """(N, dim), the descriptors one after the other."""
    every = zip(recipe.descriptors, recipe.built, recipe.keys, strict=True)
    parts = [described(s.name, built, crops[built.crop], cache / f"{s.name}-{key}.npy") for s, built, key in every]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def described(name: str, built: Descriptor, crops: Crops, path: Path, keep: bool = False) -> Rows:
    """(N, dim) float32; a dear one's are kept at `path` in half precision, to which they are rounded anyway.

    keep: a cheap one's too. A process that asks while another computes them waits for it.
    """
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            kept: Rows = np.load(path)
            return kept.astype(np.float32, copy=False)
        return _described(name, built, crops, path if keep or built.is_costly else None)


def _described(name: str, built: Descriptor, crops: Crops, kept: Path | None) -> Rows:
    rows = np.empty((len(crops), built.dim), np.float16 if built.is_costly else np.float32)
    with bar() as shown:
        for at in shown.track(range(0, len(crops), BLOCK), description=name):
            rows[at : at + BLOCK] = built.describe(np.ascontiguousarray(crops[at : at + BLOCK]))
    if kept is not None:
        with atomic_write(kept) as file:
            np.save(file, rows)
    return rows.astype(np.float32, copy=False)


def learned(name: str, crops: Crops, among: Ids, options_file: Path, seed: int = 0) -> dict[str, Any]:
    """Options of a descriptor that learns without labels, from some of these faces; kept in `options_file`.

    crops: (N, ...) of the whole set; among: positions of the faces that it may see
    """
    with FileLock(options_file.with_suffix(".lock")):
        if not options_file.exists():
            some = np.sort(np.random.default_rng(seed).choice(among, min(WORDS, len(among)), replace=False))
            kind = registry.component("descriptors", name)
            learned_options = json.dumps(kind.learn(np.ascontiguousarray(crops[some]), options_file.parent, seed))
            with atomic_write(options_file) as file:
                file.write(learned_options.encode())
    options: dict[str, Any] = json.loads(options_file.read_text())
    return options


def recipe(named: str, crops: Mapping[CropKind, Crops], among: Ids, cache: Path, seed: int = 0) -> Recipe:
    """Of `lbp`, the path of a manifest, or several joined by "+"; what has to be learned first is, from `among`.

    Raises typer.BadParameter.
    """
    return Recipe(tuple(_spec(one, crops, among, cache, seed) for one in named.split("+")))


def _spec(named: str, crops: Mapping[CropKind, Crops], among: Ids, cache: Path, seed: int) -> Spec:
    if named.endswith(".json"):
        return Spec(_kind(Path(named)), {"manifest": named})
    files = manifest_types()
    if named in files or named not in registry.names("descriptors"):
        known = ", ".join(n for n in registry.names("descriptors") if n not in files)
        raise typer.BadParameter(f"{named} is none of {known}, or a manifest FILE.json", param_hint="--descriptor")
    built = registry.build("descriptors", named)
    if built.is_ready:
        return Spec(named)
    seen = sha256(among.astype("<i8").tobytes()).hexdigest()[:16]
    return Spec(named, learned(named, crops[built.crop], among, cache / f"{named}-{seen}-{seed}.json", seed))


def _kind(manifest: Path) -> str:
    """Return the descriptor that a manifest is for. Raises typer.BadParameter."""
    try:
        return find_descriptor(manifest)
    except LikenessError as error:
        raise typer.BadParameter(f"{manifest}: {error}", param_hint="--descriptor") from error
