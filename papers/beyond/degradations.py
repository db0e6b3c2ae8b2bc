"""Degraded copies of aligned crops: covered, coarse, dark or compressed, as masks and bad cameras make them."""

import zlib
from collections.abc import Callable, Mapping
from functools import partial

import cv2
import numpy as np

from ml.types import Crops, Image

COVER_COLOUR = (128, 128, 128)
LOWER_HALF_FIRST_ROW = 60
EYE_ROWS = slice(41, 63)
DARK_GAIN = 0.4
"""The factor by which the values of a dark crop are multiplied."""
NOISE_STANDARD_DEVIATION = 7.0
"""Of the noise in a dark crop, in grey levels of 0 to 255."""
JPEG_QUALITY = 10
CLEAN = "clean"

Degrade = Callable[[Image, np.random.Generator], Image]


def cover_rows(crop: Image, rng: np.random.Generator, rows: slice) -> Image:
    """Return the crop with these rows in one colour."""
    covered = crop.copy()
    covered[rows] = COVER_COLOUR
    return covered


def coarsen(crop: Image, rng: np.random.Generator, pixels: int) -> Image:
    """Return the crop reduced to `pixels` x `pixels` by averaging, and enlarged again by linear interpolation."""
    small = cv2.resize(crop, (pixels, pixels), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(small, crop.shape[1::-1], interpolation=cv2.INTER_LINEAR), np.uint8)


def darken(crop: Image, rng: np.random.Generator) -> Image:
    """Return the crop with DARK_GAIN of its brightness and normal noise."""
    noisy = crop * DARK_GAIN + rng.normal(0.0, NOISE_STANDARD_DEVIATION, crop.shape)
    return np.asarray(np.clip(np.rint(noisy), 0, 255), np.uint8)


def compress(crop: Image, rng: np.random.Generator) -> Image:
    """Return the crop after JPEG compression at JPEG_QUALITY."""
    _, encoded = cv2.imencode(".jpg", crop[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    decoded = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    assert decoded is not None, "OpenCV reads what it has encoded"
    return np.asarray(decoded[..., ::-1], np.uint8)


DEGRADATIONS: Mapping[str, Degrade] = {
    "lower half covered": partial(cover_rows, rows=slice(LOWER_HALF_FIRST_ROW, None)),
    "eyes covered": partial(cover_rows, rows=EYE_ROWS),
    "16 pixels": partial(coarsen, pixels=16),
    "32 pixels": partial(coarsen, pixels=32),
    "dark and noisy": darken,
    "JPEG quality 10": compress,
}
CONDITIONS = (CLEAN, *DEGRADATIONS)


def degrade_crops(crops: Crops, condition: str, seed: int = 0) -> Crops:
    """Return (N, 112, 112, 3) RGB crops in one of CONDITIONS.

    The noise depends on the seed and the content of a crop, not on its position among the others.
    Raises KeyError for an unknown condition.
    """
    if condition == CLEAN:
        return np.array(crops)
    degrade = DEGRADATIONS[condition]
    degraded = np.empty_like(crops)
    for i, crop in enumerate(crops):
        degraded[i] = degrade(crop, np.random.default_rng([seed, zlib.crc32(crop.tobytes())]))
    return degraded
