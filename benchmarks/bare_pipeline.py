"""The least program that gets embeddings from the photos of an archive: the reference of an import.

Photos are read at their offsets, decoded by OpenCV, cut to the one crop that the model takes, described and embedded.
There are no limits, no quality, no hashes, no crops to keep and no rows: nothing of what the service adds.
"""

import os
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from app.config import Settings
from app.storage.recognisers.default_recogniser import choose_default
from app.threads import set_threads
from ml.aligners.similarity import CROP_SIZES_PIXELS, TEMPLATES
from ml.geometry import grey, scaled, similarity, warp
from ml.pipeline import FrontEnd, default_front_end
from ml.types import CropKind, Image

CHUNK_PHOTOS = 32
Place = tuple[Path, int, int]
"""An archive, and the offset and size of a photo in it."""
Share = tuple[list[Place], bool]


def list_photo_places(paths: Iterable[Path]) -> list[Place]:
    """List the files of tar archives."""
    places: list[Place] = []
    for path in paths:
        with tarfile.open(path) as archive:
            places += [(path, member.offset_data, member.size) for member in archive if member.isfile()]
    return places


def process_share(share: Share) -> int:
    """Embed the faces of some photos, and return their number."""
    cv2.setNumThreads(1)
    set_threads(1)
    places, is_aligned = share
    front_end, model = default_front_end(), choose_default(Settings.from_env(os.environ)).model
    [kind] = model.recipe.crops
    embedded = 0
    for start in range(0, len(places), CHUNK_PHOTOS):
        images = _read_images(places[start : start + CHUNK_PHOTOS])
        crops = [cut_aligned(i, kind) for i in images] if is_aligned else list(_find_crops(images, front_end, kind))
        if crops:
            embedded += len(model.embed(model.describe({kind: np.stack(crops)})))
    return embedded


def measure_bare_rate(paths: Sequence[Path], processes: int, is_aligned: bool) -> dict[str, float]:
    """Embed all photos in so many processes; "cpu" is in seconds of processor time a photo."""
    places = list_photo_places(paths)
    shares = [(places[n::processes], is_aligned) for n in range(processes)]
    with get_context("spawn").Pool(processes) as pool:
        pool.map(process_share, [(places[:8], is_aligned)] * processes)  # load the models before the measurement
        began, spent = time.perf_counter(), sum(read_cpu_seconds(os.getpid()).values())
        faces = sum(pool.map(process_share, shares, chunksize=1))
        seconds, spent = time.perf_counter() - began, sum(read_cpu_seconds(os.getpid()).values()) - spent
    photos = len(places)
    return {"photos": photos, "faces": faces, "seconds": seconds, "rate": photos / seconds, "cpu": spent / photos}


def read_cpu_seconds(process: int) -> dict[int, float]:
    """Return the CPU seconds of a process and its living children, from /proc."""
    spent = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat.parent.name) == process or int(fields[1]) == process:
            spent[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def _read_images(places: Iterable[Place]) -> list[Image]:
    images = []
    for path, offset, size in places:
        with path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), size, offset)
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert bgr is not None
        images.append(np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8))
    return images


def _find_crops(images: Iterable[Image], front_end: FrontEnd, kind: CropKind) -> Iterator[Image]:
    for image in images:
        for seen in front_end.detector.detect(image)[:1]:
            points = front_end.landmarks.locate(image, seen)
            if points is not None:
                yield _cut(image, similarity(points, TEMPLATES[kind]), kind)


def cut_aligned(image: Image, kind: CropKind) -> Image:
    """Cut the crop of one kind from a picture that shows one aligned face, as `FrontEnd.aligned` does."""
    height, width = image.shape[:2]
    for known, size in CROP_SIZES_PIXELS.items():
        if size == (width, height):
            return _cut(image, similarity(TEMPLATES[known], TEMPLATES[kind]), kind)
    across, down = CROP_SIZES_PIXELS[kind]
    middle, to = np.array([width - 1, height - 1]) / 2, np.array([across - 1, down - 1]) / 2
    return _cut(image, scaled(max(across / width, down / height), middle, to), kind)


def _cut(image: Image, view: NDArray[np.float64], kind: CropKind) -> Image:
    crop = warp(image, view, CROP_SIZES_PIXELS[kind])
    return grey(crop) if kind == "grey" else crop
