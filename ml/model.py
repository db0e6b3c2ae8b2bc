"""A model: recipe, embedder and calibration in one immutable folder with one id."""

import hmac
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from ml import registry
from ml.calibration import Calibration
from ml.descriptors.base import Descriptor
from ml.descriptors.external import External
from ml.distances import Distance
from ml.embedders.base import Embedder
from ml.errors import CannotDescribe, Corrupt
from ml.files import atomic_write, hash_bytes, hash_file, move_folder, parse_json, read_regular_file
from ml.types import CropKind, Crops, Rows, Spec

MANIFEST, SIGNATURE = "manifest.json", "signature"

Sign = Callable[[bytes], str]
"""Returns the signature of the bytes of a manifest."""


@dataclass(frozen=True)
class Recipe:
    """How a crop is described before it is embedded: its descriptors, one after the other in a row."""

    descriptors: tuple[Spec, ...] = (Spec("lbp"),)

    @cached_property
    def built(self) -> tuple[Descriptor, ...]:
        """The descriptors. Raises UnknownComponent, Unavailable, Corrupt."""
        return tuple(registry.build("descriptors", s.name, **s.options) for s in self.descriptors)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """A name for the values of each descriptor: 16 hex digits, the same on every machine."""
        descriptions = [(s.name, _options(s), d.version) for s, d in zip(self.descriptors, self.built, strict=True)]
        return tuple(hash_bytes(repr(t).encode())[:16] for t in descriptions)

    @property
    def external(self) -> External | None:
        """The descriptor whose vectors are imported; None if faces are described."""
        return next((d for d in self.built if isinstance(d, External)), None)

    @property
    def crops(self) -> tuple[CropKind, ...]:
        """The kinds of crop that the descriptors need."""
        return tuple(dict.fromkeys(d.crop for d in self.built if not d.is_external))

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of values of each descriptor."""
        return tuple(d.dim for d in self.built)

    @property
    def dim(self) -> int:
        """The number of values of all descriptors together."""
        return sum(self.blocks)

    def check_describes(self) -> None:
        """Raises CannotDescribe if the vectors are imported."""
        if self.external is not None:
            raise CannotDescribe(self.external.recogniser, self.dim)

    def describe(self, crops: Mapping[CropKind, Crops]) -> Rows:
        """Describe N crops of each kind that the recipe needs: (N, dim) float32.

        Raises WrongShape, NotFinite, CannotDescribe.
        """
        self.check_describes()
        return np.concatenate([d.describe(crops[d.crop]) for d in self.built], axis=1)


def _options(spec: Spec) -> list[tuple[str, object]]:
    """The options that affect the values. The path of a file does not: the descriptor's version identifies it."""
    paths = {"manifest", "vocabulary"} & spec.options.keys()
    ignored = {*paths, "pin"} if paths else set[str]()
    return sorted((name, value) for name, value in spec.options.items() if name not in ignored)


@dataclass(frozen=True, eq=False)
class Model:
    """How faces are described, embedded and scored, for one task or several.

    provenance: what the model was made from: the training, its labels and data, and when. The manifest's `facts`.
    index: the index that searches its embeddings; None: the one that suits the collection
    """

    id: str
    recipe: Recipe
    embedder_name: str
    embedder: Embedder
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    index: Spec | None = None

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
        chosen = {} if self.index is None else {"index": asdict(self.index)}
        return chosen | {
            "id": self.id,
            "descriptors": [asdict(s) for s in self.recipe.descriptors],
            "embedder": {"name": self.embedder_name, "options": self.embedder.options()},
            "notes": self.embedder.notes,
            "tasks": list(self.tasks),
            "metric": self.metric.label,
            "calibrations": {task: c.to_dict() for task, c in self.calibrations.items()},
            "facts": dict(self.provenance),
        }


def save_model(model: Model, folder: Path, sign: Sign | None = None) -> Path:
    """Write the model to `folder/<id>` completely or not at all, and return the path. An existing one is kept.

    sign: signs the manifest, which has the hashes of all files

    Raises OSError.
    """
    final = folder / model.id
    if final.exists():
        return final
    part = folder / f".{uuid4().hex}"
    try:
        model.embedder.save(part)
        manifest = model.manifest()
        manifest["files"] = {p.name: hash_file(p) for p in sorted(part.iterdir())}
        (part / MANIFEST).write_text(json.dumps(manifest, indent=1))
        if sign is not None:
            sign_model(part, sign)
        move_folder(part, final)
    except OSError:
        if not final.exists():  # else another process wrote it first
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return final


def sign_model(folder: Path, sign: Sign) -> None:
    """Sign the manifest of a saved model, in place of an earlier signature. Raises OSError."""
    with atomic_write(folder / SIGNATURE) as file:
        file.write(sign((folder / MANIFEST).read_bytes()).encode())


def read_manifest(folder: Path, sign: Sign | None = None) -> dict[str, Any]:
    """Return the manifest of a saved model, whose files all have the hashes that it states.

    sign: returns the signature that the manifest must have; None: any, or none
    Raises Corrupt if a file is missing, altered or no regular file, or the signature is another one.
    """
    try:
        content = read_regular_file(folder / MANIFEST)
        manifest: dict[str, Any] = parse_json(content)
        wrong = [name for name, digest in manifest["files"].items() if hash_file(folder / name) != digest]
        is_signed = sign is not None and (folder / SIGNATURE).exists()
        signature = read_regular_file(folder / SIGNATURE) if is_signed else b""
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"the model {folder.name} cannot be read: {error}") from error
    if wrong:
        raise Corrupt(f"the model {folder.name} was altered: {', '.join(wrong)}")
    if sign is not None and not hmac.compare_digest(signature, sign(content).encode()):
        raise Corrupt(f"the manifest of the model {folder.name} is not signed by this installation")
    return manifest


def load_model(folder: Path, sign: Sign | None = None) -> Model:
    """Load what `save_model` wrote. Raises the errors of `read_manifest`."""
    manifest = read_manifest(folder, sign)
    return Model(
        id=manifest["id"],
        recipe=Recipe(tuple(Spec(**d) for d in manifest["descriptors"])),
        embedder_name=manifest["embedder"]["name"],
        embedder=registry.component("embedders", manifest["embedder"]["name"]).load(folder),
        calibrations={t: Calibration.from_dict(c) for t, c in manifest["calibrations"].items()},
        provenance=manifest["facts"],
        index=Spec(**manifest["index"]) if "index" in manifest else None,
    )
