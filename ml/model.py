"""A generation: recipe, embedder and calibration in one folder, under one id, never changed."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from ml import registry
from ml.calibration import Calibration
from ml.descriptors.base import Descriptor
from ml.distances import Distance
from ml.embedders.base import Embedder
from ml.errors import Corrupt
from ml.types import CropKind, Crops, Rows, Spec

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Recipe:
    """What a crop goes through before the embedder: its descriptors, one after the other in a row."""

    descriptors: tuple[Spec, ...] = (Spec("lbp"),)

    @cached_property
    def built(self) -> tuple[Descriptor, ...]:
        return tuple(registry.build("descriptors", s.name, **s.options) for s in self.descriptors)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Of each descriptor, the name of its numbers: 16 hex digits, the same wherever they are."""
        descriptions = [(s.name, _options(s), d.version) for s, d in zip(self.descriptors, self.built, strict=True)]
        return tuple(hashlib.sha256(repr(t).encode()).hexdigest()[:16] for t in descriptions)

    @property
    def crops(self) -> tuple[CropKind, ...]:
        """The kinds of crop it needs."""
        return tuple(dict.fromkeys(d.crop for d in self.built))

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many numbers each descriptor has."""
        return tuple(d.dim for d in self.built)

    @property
    def dim(self) -> int:
        return sum(self.blocks)

    def describe(self, crops: Mapping[CropKind, Crops]) -> Rows:
        """(N, dim) float32 from N crops of each kind needed."""
        return np.concatenate([d.describe(crops[d.crop]) for d in self.built], axis=1)


def _options(spec: Spec) -> list[tuple[str, object]]:
    """What changes the numbers: not where a manifest lies, since the descriptor's version says what it is."""
    where = {"manifest", "pin"} if "manifest" in spec.options else set[str]()
    return sorted((name, value) for name, value in spec.options.items() if name not in where)


@dataclass(frozen=True, eq=False)
class Model:
    """How a face is described, embedded and scored, for one task or several.

    `facts` are what the manifest says besides: from which training, labels and data; when.
    """

    id: str
    recipe: Recipe
    embedder_name: str
    embedder: Embedder
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.embedder.tasks

    @property
    def metric(self) -> Distance:
        return self.embedder.metric

    def describe(self, crops: Mapping[CropKind, Crops]) -> Rows:
        """Describe N crops of each kind: (N, D)."""
        return self.recipe.describe(crops)

    def embed(self, rows: Rows, task: str = "identity") -> Rows:
        """Embed (N, D) descriptors for a task: (N, d)."""
        return self.embedder.embed(rows, task)

    def embed_crops(self, crops: Mapping[CropKind, Crops], tasks: Sequence[str] = ()) -> dict[str, Rows]:
        """Describe N crops of each kind and embed them for these tasks, or for all: task -> (N, d)."""
        rows = self.describe(crops)
        return {task: self.embed(rows, task) for task in tasks or self.tasks}

    def manifest(self) -> dict[str, Any]:
        """Return the content of the manifest, as values for JSON."""
        return {
            "id": self.id,
            "descriptors": [asdict(s) for s in self.recipe.descriptors],
            "embedder": {"name": self.embedder_name, "options": self.embedder.options()},
            "notes": self.embedder.notes,
            "tasks": list(self.tasks),
            "metric": self.metric.label,
            "calibrations": {task: c.to_dict() for task, c in self.calibrations.items()},
            "facts": dict(self.facts),
        }


def save_model(generation: Model, folder: Path) -> Path:
    """Writes `folder/<id>` whole or not at all; one that is there stays as it is. Returns its path."""
    final = folder / generation.id
    if final.exists():
        return final
    part = folder / f".{uuid4().hex}"
    generation.embedder.save(part)
    manifest = generation.manifest()
    manifest["files"] = {p.name: _sha256(p) for p in sorted(part.iterdir())}
    (part / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in part.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    try:
        part.rename(final)
    except OSError:  # another process was faster
        shutil.rmtree(part)
    return final


def load_model(folder: Path) -> Model:
    """What `save` wrote. Raises Corrupt where a file is missing or is not the one that the manifest names."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        wrong = [name for name, digest in manifest["files"].items() if _sha256(folder / name) != digest]
    except (OSError, ValueError, KeyError) as error:
        raise Corrupt(f"the model {folder.name} cannot be read: {error}") from error
    if wrong:
        raise Corrupt(f"the model {folder.name} was altered: {', '.join(wrong)}")
    return Model(
        id=manifest["id"],
        recipe=Recipe(tuple(Spec(**d) for d in manifest["descriptors"])),
        embedder_name=manifest["embedder"]["name"],
        embedder=registry.component("embedders", manifest["embedder"]["name"]).load(folder),
        calibrations={t: Calibration.from_dict(c) for t, c in manifest["calibrations"].items()},
        facts=manifest["facts"],
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
