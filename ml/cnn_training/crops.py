"""Prepare training data: photos of known people become aligned colour crops, stored once in an .npy file.

A JSON file beside it lists the person of each crop.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
from joblib import cpu_count
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from ml.descriptors.base import CROP_SHAPES
from ml.detectors.base import centre_face
from ml.errors import Corrupt, LikenessError, Unavailable
from ml.files import hash_bytes
from ml.images import read
from ml.pipeline import FrontEnd, default_front_end
from ml.types import Crops, Ids

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
ReportProgress = Callable[[int, int], None]
"""Called as report(done, total) after each photo."""


@dataclass(frozen=True, eq=False)
class LabelledCrops:
    """Aligned colour crops with their people.

    crops: (N, 112, 112, 3) uint8 RGB, possibly memory-mapped; people: (N,) int64, a number for each person
    """

    crops: Crops
    people: Ids


def list_photos(data: Path, identities: Path | None = None) -> list[tuple[str, str]]:
    """List the (photo, person) of every photo, with the path of the photo relative to `data`.

    Without `identities`, the person is the folder of the photo. Otherwise `identities` is a text file with one line
    `photo person` per photo. Raises Unavailable if there are no photos, Corrupt if a line has another form.
    """
    if identities is None:
        paths = sorted(p for p in data.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
        photos = [(p.relative_to(data).as_posix(), p.parent.relative_to(data).as_posix()) for p in paths]
    else:
        lines = [row.rsplit(maxsplit=1) for row in identities.read_text().splitlines() if row.strip()]
        if bad := next((row for row in lines if len(row) != 2), None):
            raise Corrupt(f"{identities.name}: each line is a photo's path and its person, not {' '.join(bad)!r}")
        photos = [(photo, person) for photo, person in lines]
    if not photos:
        raise Unavailable(f"no photos in {data}: put each person's into a folder of its own, or list them in a file")
    return photos


def prepare_crops(
    data: Path, path: Path, identities: Path | None = None, report: ReportProgress = lambda done, total: None
) -> LabelledCrops:
    """Cut the crop of the face nearest to the centre of each photo, on all cores, and store the crops at `path`.

    Photos without a face and damaged files are left out. If `path`, an .npy file, was made from the same list of
    photos, it is loaded instead. Raises Unavailable, Corrupt.
    """
    photos = list_photos(data, identities)
    record, digest = path.with_suffix(".json"), hash_bytes(json.dumps(photos).encode())
    if not (path.is_file() and record.is_file() and json.loads(record.read_text())["asked"] == digest):
        people = _align_photos(data, photos, path, report)
        record.write_text(json.dumps({"asked": digest, "people": people}))
    return load_crops(path)


def load_crops(path: Path) -> LabelledCrops:
    """Load the crops that `prepare_crops` stored. Raises Unavailable, Corrupt."""
    if not path.is_file():
        raise Unavailable(f"no crops at {path}; give the folder of photos to make them from")
    try:
        people = json.loads(path.with_suffix(".json").read_text())["people"]
        crops = np.load(path, mmap_mode="r")
    except (OSError, ValueError, KeyError) as error:
        raise Corrupt(f"the crops {path.name} and the list beside them cannot be read: {error}") from error
    if crops.shape != (len(people), *CROP_SHAPES["colour"]) or crops.dtype != np.uint8:
        raise Corrupt(f"the crops {path.name} are {crops.shape} {crops.dtype}, not {len(people)} of 112 x 112 RGB")
    return LabelledCrops(crops, np.unique(people, return_inverse=True)[1].astype(np.int64))


def _align_photos(data: Path, photos: list[tuple[str, str]], path: Path, report: ReportProgress) -> list[str]:
    """Write the crops to temporary files and move them to `path`. Returns the person of each crop."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, complete, people = path.with_suffix(".part"), path.with_suffix(".complete.npy"), list[str]()
    crops = open_memmap(partial, "w+", np.uint8, (len(photos), *CROP_SHAPES["colour"]))
    for done, (crop, (_, person)) in enumerate(zip(_iterate_crops(data, photos), photos, strict=True), 1):
        if crop is not None:
            crops[len(people)] = crop
            people.append(person)
        report(done, len(photos))
    crops.flush()
    np.save(complete, crops[: len(people)])
    partial.unlink()
    complete.replace(path)
    return people


_front_ends: list[FrontEnd] = []


def _start_process() -> None:
    cv2.setNumThreads(1)
    _front_ends.append(default_front_end())


def _align_photo(path: Path) -> NDArray[np.uint8] | None:
    """Return the colour crop of a photo; None if the file is damaged or shows no face."""
    [front_end] = _front_ends
    try:
        image = read(path.read_bytes())
    except LikenessError:
        return None
    detection = centre_face(front_end.detector.detect(image), image)
    face = front_end.align(image, detection) if detection else None
    return face.crops["colour"] if face else None


def _iterate_crops(data: Path, photos: list[tuple[str, str]]) -> Iterator[NDArray[np.uint8] | None]:
    paths = [data / photo for photo, _ in photos]
    with ProcessPoolExecutor(cpu_count(), get_context("spawn"), _start_process) as pool:
        yield from pool.map(_align_photo, paths, chunksize=16)
