"""An archive of aligned crops of people who do not exist: 112 x 112 pixels, JPEG, a folder for each person."""

import io
import tarfile
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ml.aligners.similarity import CROP_SIZES_PIXELS, TEMPLATES
from ml.geometry import similarity, warp
from ml.synthetic_faces import person, photograph

CROPS_PER_PHOTO, PHOTOS_PER_PERSON = 20, 4
"""A drawn photo is cut several times, each time a little differently and with noise of its own."""
QUALITY, JITTER_PIXELS, NOISE = 92, 1.5, 3.0


def write_drawn_crops(path: Path, count: int, seed: int = 0) -> None:
    """Write a tar of so many crops, no two of which are equal."""
    draw = np.random.default_rng(seed)
    per_person = CROPS_PER_PHOTO * PHOTOS_PER_PERSON
    with tarfile.open(path, "w") as archive:
        for n in range(count):
            who, nth = divmod(n, per_person)
            if nth % CROPS_PER_PHOTO == 0:
                image, points = photograph(person(who), nth, 160)
            moved = points + draw.normal(0, JITTER_PIXELS, points.shape)
            crop = warp(image, similarity(moved, TEMPLATES["colour"]), CROP_SIZES_PIXELS["colour"])
            data = _encode(np.clip(crop + draw.normal(0, NOISE, crop.shape), 0, 255).astype(np.uint8))
            member = tarfile.TarInfo(f"person-{who:05d}/{nth:03d}.jpg")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def _encode(crop: NDArray[np.uint8]) -> bytes:
    is_encoded, data = cv2.imencode(".jpg", cv2.cvtColor(crop, cv2.COLOR_RGB2BGR), (cv2.IMWRITE_JPEG_QUALITY, QUALITY))
    assert is_encoded
    return data.tobytes()
