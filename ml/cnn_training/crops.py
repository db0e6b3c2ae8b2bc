"""Photos of known people -> aligned colour crops, made once and kept in one .npy beside a list of whose they are."""

import hashlib
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
from ml.images import read
from ml.pipeline import FrontEnd, default_front_end
from ml.types import Crops, Ids

PICTURES = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
Tell = Callable[[int, int], None]
"""tell(done, of): after each photo."""


@dataclass(frozen=True, eq=False)
class LabelledCrops:
    """crops: (N, 112, 112, 3) uint8 RGB, may lie on the disk; people: (N,) int64, whose each is."""

    crops: Crops
    people: Ids


def listed(data: Path, identities: Path | None = None) -> list[tuple[str, str]]:
    """(photo, person) of every photo: below `data` by the folder it lies in, or as the lines `photo person` of a file
    say, the photo relative to `data`. Raises Unavailable where there is none, Corrupt (a line of another form)."""
    if identities is None:
        paths = sorted(p for p in data.rglob("*") if p.suffix.lower() in PICTURES)
        photos = [(p.relative_to(data).as_posix(), p.parent.relative_to(data).as_posix()) for p in paths]
    else:
        lines = [row.rsplit(maxsplit=1) for row in identities.read_text().splitlines() if row.strip()]
        if bad := next((row for row in lines if len(row) != 2), None):
            raise Corrupt(f"{identities.name}: each line is a photo's path and its person, not {' '.join(bad)!r}")
        photos = [(photo, person) for photo, person in lines]
    if not photos:
        raise Unavailable(f"no photos in {data}: put each person's into a folder of its own, or name them in a file")
    return photos


def gather(data: Path, kept: Path, identities: Path | None = None, tell: Tell = lambda done, of: None) -> LabelledCrops:
    """The crop of the face nearest the middle of each photo, by our own front end, on every core.

    Photos in which none is seen, and broken ones, are left out. kept: an .npy; where it was made from the same list it
    is read, not made. Raises Unavailable, Corrupt.
    """
    photos = listed(data, identities)
    note, digest = kept.with_suffix(".json"), hashlib.sha256(json.dumps(photos).encode()).hexdigest()
    if not (kept.is_file() and note.is_file() and json.loads(note.read_text())["asked"] == digest):
        people = _make(data, photos, kept, tell)
        note.write_text(json.dumps({"asked": digest, "people": people}))
    return load(kept)


def load(kept: Path) -> LabelledCrops:
    """What `gather` kept. Raises Unavailable, Corrupt."""
    if not kept.is_file():
        raise Unavailable(f"no crops at {kept}; give the folder of photos to make them from")
    try:
        people = json.loads(kept.with_suffix(".json").read_text())["people"]
        crops = np.load(kept, mmap_mode="r")
    except (OSError, ValueError, KeyError) as error:
        raise Corrupt(f"the crops {kept.name} and the list beside them cannot be read: {error}") from error
    if crops.shape != (len(people), *CROP_SHAPES["colour"]) or crops.dtype != np.uint8:
        raise Corrupt(f"the crops {kept.name} are {crops.shape} {crops.dtype}, not {len(people)} of 112 x 112 RGB")
    return LabelledCrops(crops, np.unique(people, return_inverse=True)[1].astype(np.int64))


def _make(data: Path, photos: list[tuple[str, str]], kept: Path, tell: Tell) -> list[str]:
    """Written under another name and renamed, so that what lies there is always whole. Returns whose each crop is."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    part, whole, people = kept.with_suffix(".part"), kept.with_suffix(".whole.npy"), list[str]()
    crops = open_memmap(part, "w+", np.uint8, (len(photos), *CROP_SHAPES["colour"]))
    for done, (crop, (_, person)) in enumerate(zip(_aligned(data, photos), photos, strict=True), 1):
        if crop is not None:
            crops[len(people)] = crop
            people.append(person)
        tell(done, len(photos))
    crops.flush()
    np.save(whole, crops[: len(people)])
    part.unlink()
    whole.replace(kept)
    return people


_front_ends: list[FrontEnd] = []


def _start() -> None:
    cv2.setNumThreads(1)
    _front_ends.append(default_front_end())


def _crop(path: Path) -> NDArray[np.uint8] | None:
    [front_end] = _front_ends
    try:
        image = read(path.read_bytes())
    except LikenessError:
        return None
    detection = centre_face(front_end.detector.detect(image), image)
    face = front_end.align(image, detection) if detection else None
    return face.crops["colour"] if face else None


def _aligned(data: Path, photos: list[tuple[str, str]]) -> Iterator[NDArray[np.uint8] | None]:
    paths = [data / photo for photo, _ in photos]
    with ProcessPoolExecutor(cpu_count(), get_context("spawn"), _start) as pool:
        yield from pool.map(_crop, paths, chunksize=16)
