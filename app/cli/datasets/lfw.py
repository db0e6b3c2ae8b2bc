"""Read LFW and its protocol files, for `evaluate` and `export-embeddings`."""

import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import typer
from filelock import FileLock
from joblib import cpu_count

from app.cli.client import open_progress
from ml import images
from ml.pipeline import FrontEnd, default_front_end
from ml.types import AlignedFace, CropKind, Crops, Image

CROP_KINDS: tuple[CropKind, ...] = ("grey", "colour")
PHOTOS_PER_CHUNK = 64


@dataclass(frozen=True)
class LfwDataset:
    """The folder of the data: `lfw-deepfunneled-*.tar` (or `lfw/<person>/<photo>`) and `lfw-protocol/`."""

    data: Path

    @property
    def archives(self) -> list[Path]:
        return sorted(self.data.glob("lfw-deepfunneled*.tar"))

    @property
    def protocol(self) -> Path:
        return self.data / "lfw-protocol"

    def photos(self) -> Iterator[tuple[str, bytes]]:
        """Yield (`Name/Name_0001.jpg`, bytes) of all photos. Raises typer.BadParameter if there are none."""
        folder = self.data / "lfw"
        if not self.archives and not folder.is_dir():
            raise typer.BadParameter(
                f"neither lfw-deepfunneled-*.tar nor a folder lfw in {self.data}", param_hint="--data"
            )
        if not self.archives:
            for path in sorted(folder.rglob("*.jpg")):
                yield path.relative_to(folder).as_posix(), path.read_bytes()
        for archive in self.archives:
            with tarfile.open(archive) as tar:
                for member in tar:
                    file = tar.extractfile(member) if member.isfile() else None
                    if file is not None:
                        yield member.name.removeprefix("./"), file.read()


class PhotoSource(Protocol):
    """Photos with their names."""

    def photos(self) -> Iterator[tuple[str, bytes]]: ...


def load_crops(source: PhotoSource, cache: Path) -> tuple[list[str], dict[CropKind, Crops]]:
    """Return the names of all photos and the crops of their centre faces, (N, ...) of each kind, cached in `cache`.

    While another process cuts the crops, this one waits.
    """
    names_file = cache / "names.txt"
    with FileLock(cache / "names.lock"):
        if not names_file.exists():
            _cut_crops(source, cache)
    names = names_file.read_text().splitlines()
    return names, {kind: np.load(cache / f"{kind}.npy", mmap_mode="r") for kind in CROP_KINDS}


def _cut_crops(source: PhotoSource, cache: Path) -> None:
    photos = sorted(source.photos())
    chunks = [photos[i : i + PHOTOS_PER_CHUNK] for i in range(0, len(photos), PHOTOS_PER_CHUNK)]
    with open_progress() as progress, ProcessPoolExecutor(cpu_count()) as pool:
        shown = progress.add_task(f"cut faces, {cache.name}", total=len(photos))
        parts: dict[CropKind, list[Image]] = {kind: [] for kind in CROP_KINDS}
        for faces in pool.map(_align_photos, chunks):
            for face in faces:
                for kind in CROP_KINDS:
                    parts[kind].append(face.crops[kind])
            progress.advance(shown, len(faces))
    for kind in CROP_KINDS:
        np.save(cache / f"{kind}.npy", np.stack(parts[kind]))
    (cache / "names.txt").write_text("\n".join(name for name, _ in photos) + "\n")


def _align_photos(photos: list[tuple[str, bytes]]) -> list[AlignedFace]:
    front_end = default_front_end()
    return [find_centre_face(front_end, images.read(data)) for _, data in photos]


def find_centre_face(front_end: FrontEnd, image: Image) -> AlignedFace:
    """Return the face nearest the middle of the photo; if there is none, the whole photo as an aligned face."""
    height, width = image.shape[:2]

    def distance_from_middle(face: AlignedFace) -> float:
        box = face.box
        return float(np.hypot(box.x + box.width / 2 - width / 2, box.y + box.height / 2 - height / 2))

    faces = front_end.faces(image)
    return min(faces, key=distance_from_middle) if faces else front_end.aligned(image)
