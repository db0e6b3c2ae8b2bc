"""The faces of a folder, tar or zip of person/photo: the largest face of each photo, as enrolment takes it."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
from joblib import cpu_count

from app.config import Settings
from app.enrolment.archives.entries import Archive, Entry
from app.enrolment.archives.folders import Folder
from app.enrolment.archives.formats import open_parser
from app.storage.recognisers.default_recogniser import choose_default
from app.threads import set_threads
from benchmarks.fault_planting import EnrolledFace
from ml import images
from ml.errors import Unreadable
from ml.files import atomic_write
from ml.model import Model
from ml.pipeline import FrontEnd, default_front_end
from ml.types import Image

QUALITIES = ("sharpness", "contrast", "eye_distance")
PHOTOS_PER_CHUNK = 32
MAX_PHOTO_BYTES = 2**25
BLUR_SHARES, SIZE_FACTORS, CONTRAST_FACTORS = (0.004, 0.02), (0.2, 0.6), (0.1, 0.5)
"""The least and the greatest: standard deviation of a blur over the width of the photo, and factors."""


@lru_cache(1)
def open_model() -> Model:
    """Return the built-in model of new collections."""
    return choose_default(Settings.from_env(os.environ)).model


@lru_cache(1)
def _open_front_end() -> FrontEnd:
    set_threads(1)
    return default_front_end()


def enrol_image(image: Image) -> EnrolledFace | None:
    """Return the largest face of a photo; None if there is none, or if enrolment refuses it."""
    seen = _open_front_end().detector.detect(image)[:1]
    face = _open_front_end().align(image, seen[0]) if seen else None
    if face is None or face.quality.reasons:
        return None
    crops = {kind: face.crops[kind][None] for kind in open_model().recipe.crops}
    return EnrolledFace(
        open_model().embed_crops(crops)["identity"][0], {name: getattr(face.quality, name) for name in QUALITIES}
    )


def degrade_image(image: Image, draw: np.random.Generator) -> Image:
    """Blur a photo, make it small, or make it pale, by a random strength."""
    height, width = image.shape[:2]
    kind = draw.integers(3)
    if kind == 0:
        return np.asarray(cv2.GaussianBlur(image, (0, 0), draw.uniform(*BLUR_SHARES) * width), np.uint8)
    if kind == 1:
        factor = draw.uniform(*SIZE_FACTORS)
        size = (round(width * factor), round(height * factor))
        return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
    mean = image.mean()
    return np.asarray(np.clip(mean + draw.uniform(*CONTRAST_FACTORS) * (image - mean), 0, 255), np.uint8)


def _enrol_photos(photos: Sequence[bytes]) -> list[EnrolledFace | None]:
    return [_enrol_photo(photo) for photo in photos]


def _enrol_photo(photo: bytes) -> EnrolledFace | None:
    try:
        return enrol_image(images.read(photo))
    except Unreadable:
        return None


def find_person(name: str) -> str:
    """Return the folder of a photo, which names the person."""
    return name.split("/")[-2]


@dataclass(frozen=True)
class PhotoFiles:
    """Photos in folders and archives."""

    paths: Sequence[Path]

    def read(self, name: str) -> Image:
        return images.read(self._read_bytes(name))

    @property
    def names(self) -> list[str]:
        return sorted(self._entries)

    def enrol(self, cache: Path, max_people: int | None = None) -> "PhotoFaces":
        """Return the faces, of `max_people` people drawn at random. They are computed once, and kept in `cache`."""
        if not cache.exists():
            self._describe(cache)
        with np.load(cache) as kept:
            names, rows, qualities = kept["names"].tolist(), kept["rows"], kept["qualities"].tolist()
        people = sorted({find_person(name) for name in names})
        chosen = set(np.random.default_rng(0).permutation(people)[:max_people])
        faces = {
            name: EnrolledFace(row, dict(zip(QUALITIES, values, strict=True)))
            for name, row, values in zip(names, rows, qualities, strict=True)
            if find_person(name) in chosen
        }
        return PhotoFaces(self, list(faces), list(faces.values()))

    def _describe(self, cache: Path) -> None:
        names = self.names
        chunks = [names[start : start + PHOTOS_PER_CHUNK] for start in range(0, len(names), PHOTOS_PER_CHUNK)]
        with ProcessPoolExecutor(cpu_count(), get_context("spawn")) as pool:
            photos = ([self._read_bytes(name) for name in chunk] for chunk in chunks)
            parts = pool.map(_enrol_photos, photos) if len(chunks) > 1 else map(_enrol_photos, photos)
            faces = [face for part in parts for face in part]
        kept = [(name, face) for name, face in zip(names, faces, strict=True) if face is not None]
        with atomic_write(cache) as file:
            np.savez(
                file,
                names=np.array([name for name, _ in kept]),
                rows=np.stack([face.row for _, face in kept]),
                qualities=np.array([list(face.quality.values()) for _, face in kept]),
            )

    def _read_bytes(self, name: str) -> bytes:
        archive, entry = self._entries[name]
        return archive.read(entry, MAX_PHOTO_BYTES)

    @cached_property
    def _entries(self) -> dict[str, tuple[Archive, Entry]]:
        archives = [Folder(path) if path.is_dir() else open_parser(path) for path in self.paths]
        return {
            entry.name: (archive, entry)
            for archive in archives
            for entry in archive.entries()
            if entry.kind == "file" and "/" in entry.name
        }


@dataclass(frozen=True, eq=False)
class PhotoFaces:
    """The faces that are enrolled. photo_names: of the photos, as person/photo"""

    photos: PhotoFiles
    photo_names: Sequence[str]
    faces: Sequence[EnrolledFace]

    @property
    def model(self) -> Model:
        return open_model()

    @cached_property
    def names(self) -> Sequence[str]:
        return [find_person(name) for name in self.photo_names]

    def degrade(self, position: int, draw: np.random.Generator) -> EnrolledFace | None:
        return enrol_image(degrade_image(self.photos.read(self.photo_names[position]), draw))
