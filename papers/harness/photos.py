"""The photo sets of the experiments, and their crops and features, which are computed once."""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import typer
from filelock import FileLock

from app.cli.datasets import features, lfw
from ml.compensation import degrade_crops
from ml.files import atomic_write, hash_file
from ml.model import Recipe
from ml.types import CropKind, Crops, Ids, Rows, Spec

ARCHIVES = {
    "age": "age-utkface.tar",
    "distractors": "distractors-utkface.tar",
    "expression": "expression-fer2013-privatetest.tar",
    "celeba": "identities-celeba10k.tar",
}
MIRRORED_SUFFIX = "-mirrored"
MODEL = "mobilefacenet"
MOBILEFACENET_FILE = "models/mobilefacenet_112_128d.onnx"


@dataclass(frozen=True)
class PhotoArchive:
    """A tar file of photos. The first folder in a photo's name is its label."""

    path: Path

    def photos(self) -> Iterator[tuple[str, bytes]]:
        with tarfile.open(self.path) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield member.name.removeprefix("./"), file.read()


@dataclass(frozen=True)
class Photos:
    """The photo sets of the folder `data`: "lfw" and those of ARCHIVES. Crops and features are cached in `cache`.

    Features: "lbp", "fisher", "sift", "fplbp", "cslbp", "mobilefacenet", or several joined by "+", one after the other.
    "lbp-mirrored": the mean over a crop and its mirror image.
    """

    data: Path
    cache: Path

    @cached_property
    def lfw(self) -> lfw.LfwDataset:
        return lfw.LfwDataset(self.data)

    def names(self, photo_set: str) -> list[str]:
        return self._cut(photo_set)[0]

    def crops(self, photo_set: str, kind: CropKind) -> Crops:
        """Return the crops of a set, memory-mapped, in the order of `names`."""
        return self._cut(photo_set)[1][kind]

    def has(self, photo_set: str) -> bool:
        return photo_set == "lfw" or (self.data / ARCHIVES[photo_set]).exists()

    @property
    def has_model(self) -> bool:
        """Whether the MobileFaceNet model is available."""
        return (self.data / MOBILEFACENET_FILE).exists()

    def rows(self, photo_set: str, features: str) -> Rows:
        """Return (N, D) float32 descriptors, in the order of `names`; several features are concatenated."""
        return _concatenate_features(self, photo_set, features)

    def blocks(self, features: str) -> tuple[int, ...]:
        """Return the width of each feature."""
        return tuple(self.recipe(one).dim for one in features.split("+"))

    def recipe(self, feature: str) -> Recipe:
        """Return the recipe of a feature. Raises typer.BadParameter if a file that it needs is missing."""
        name = feature.removesuffix(MIRRORED_SUFFIX)
        options: dict[str, object] = {} if name == feature else {"mirrored": True}
        if name == MODEL:
            return Recipe((Spec("onnx", {"manifest": str(self._manifest()), **options}),))
        if name == "fisher":
            return Recipe((Spec("fisher", {**self._vocabulary(), **options}),))
        return Recipe((Spec(name, options),))

    @cached_property
    def unused(self) -> Ids:
        """(N,) indexes of the LFW photos in no list of queries and in no pair; vocabularies are learned from them."""
        files = [*self.lfw.protocol.glob("queries-*.txt"), *self.lfw.protocol.glob("disjoint-*.txt")]
        named = {text.strip().removeprefix("query ") for f in files for text in f.read_text().splitlines()}
        from ml.evaluation.verification_pairs import read_folds

        names = self.names("lfw")
        judged = {n for fold in read_folds(self.lfw.protocol / "pairs.txt", names) for n in fold.named}
        return np.array([i for i, n in enumerate(names) if n not in named and n not in judged], np.int64)

    def _cut(self, photo_set: str) -> tuple[list[str], dict[CropKind, Crops]]:
        source = self.lfw if photo_set == "lfw" else PhotoArchive(self.data / ARCHIVES[photo_set])
        return lfw.load_crops(source, self.cache / photo_set)

    def feature(self, photo_set: str, feature: str) -> Rows:
        """Return the (N, D) float32 rows of one feature, computed once; slow ones are stored in half precision."""
        return self.described(photo_set, self.recipe(feature), feature)

    def described(self, photo_set: str, recipe: Recipe, feature: str = "", degradation: str | None = None) -> Rows:
        """Return the (N, D) rows of a recipe with one descriptor.

        feature: the name of the file that stores them; degradation: one of DEGRADATIONS, by which crops are degraded
        """
        [built], [spec] = recipe.built, recipe.descriptors
        feature = " ".join(filter(None, (feature or spec.name, degradation)))
        path = self.cache / photo_set / f"{feature}-{recipe.keys[0]}.npy"
        crops = self.crops(photo_set, built.crop)
        if degradation and not path.exists():
            crops = degrade_crops(crops, degradation)
        return features.load_or_describe(f"{feature}, {photo_set}", built, crops, path, keep=True)

    def _vocabulary(self) -> dict[str, object]:
        """Learn the vocabulary of the Fisher vectors, without labels, from LFW photos that are in no protocol."""
        return features.learn_options("fisher", self.crops("lfw", "grey"), self.unused, self.cache / "vocabulary.json")

    def _manifest(self) -> Path:
        model, path = self.data / MOBILEFACENET_FILE, self.cache / "mobilefacenet.json"
        if not model.exists():
            raise typer.BadParameter(f"there is no {MOBILEFACENET_FILE}", param_hint="--data")
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                manifest = {
                    "file": str(model.resolve()),
                    "sha256": hash_file(model),
                    "size": [112, 112],
                    "colour": "rgb",
                    "mean": 127.5,
                    "scale": 127.5,
                    "dim": 128,
                    "normalise": True,
                    "licence": "unknown",
                }
                with atomic_write(path) as file:
                    file.write(json.dumps(manifest).encode())
        return path


@lru_cache(maxsize=3)
def _concatenate_features(photos: Photos, photo_set: str, features: str) -> Rows:
    parts = [photos.feature(photo_set, one) for one in features.split("+")]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
