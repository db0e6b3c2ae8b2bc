"""Degraded copies of good crops, as small faces, covered faces, dark photos and strong compression make them."""

import zlib
from collections.abc import Callable, Mapping
from functools import partial

import cv2
import numpy as np

from ml.types import Crops, Image

Degrade = Callable[[Image, np.random.Generator], Image]

COVER_COLOUR = (150, 170, 190)
"""Light blue, as of a surgical mask."""
LOWER_HALF, EYE_BAND = (0.55, 1.0), (0.35, 0.57)
"""Shares of the height of a crop."""
PIXEL_WIDTHS = (8, 10, 12, 15, 19, 24, 30, 38)
"""Widths of a small face's crop in pixels of its photo: each is about 1.25 times the one before."""
LIGHTS = ((0.5, 4.0), (0.3, 10.0))
"""Factors of the brightness, and standard deviations of the noise in grey levels of 0 to 255."""
JPEG_QUALITIES = (6, 15)


def _reduce_pixels(crop: Image, rng: np.random.Generator, width: int) -> Image:
    """Return the crop reduced to this many pixels in width, and enlarged again as an aligner enlarges a small face."""
    height = max(1, round(width * crop.shape[0] / crop.shape[1]))
    small = cv2.resize(crop, (width, height), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(small, crop.shape[1::-1], interpolation=cv2.INTER_LINEAR), np.uint8)


def _cover_band(crop: Image, rng: np.random.Generator, band: tuple[float, float]) -> Image:
    """Return the crop with COVER_COLOUR between two shares of its height."""
    first, last = (round(share * len(crop)) for share in band)
    covered = crop.copy()
    covered[first:last] = COVER_COLOUR if crop.ndim == 3 else round(sum(COVER_COLOUR) / 3)
    return covered


def _dim_light(crop: Image, rng: np.random.Generator, light: tuple[float, float]) -> Image:
    """Return the crop with less brightness, and with normal noise."""
    factor, noise = light
    return np.asarray(np.clip(np.rint(crop * factor + rng.normal(0.0, noise, crop.shape)), 0, 255), np.uint8)


def _compress(crop: Image, rng: np.random.Generator, quality: int) -> Image:
    """Return the crop after JPEG compression."""
    swapped = crop[..., ::-1] if crop.ndim == 3 else crop
    _, encoded = cv2.imencode(".jpg", np.ascontiguousarray(swapped), [cv2.IMWRITE_JPEG_QUALITY, quality])
    decoded = cv2.imdecode(encoded, cv2.IMREAD_UNCHANGED)
    assert decoded is not None, "OpenCV reads what it has encoded"
    return np.asarray(decoded[..., ::-1] if crop.ndim == 3 else decoded, np.uint8)


DEGRADATIONS: Mapping[str, Degrade] = {
    **{f"{width} pixels": partial(_reduce_pixels, width=width) for width in PIXEL_WIDTHS},
    "lower half covered": partial(_cover_band, band=LOWER_HALF),
    "eyes covered": partial(_cover_band, band=EYE_BAND),
    **{f"light {light[0]}": partial(_dim_light, light=light) for light in LIGHTS},
    **{f"JPEG quality {quality}": partial(_compress, quality=quality) for quality in JPEG_QUALITIES},
}


def degrade_crops(crops: Crops, name: str, seed: int = 0) -> Crops:
    """Return (N, ...) crops degraded by the one of this name, each the same way each time. Raises KeyError."""
    degrade = DEGRADATIONS[name]
    degraded = np.empty_like(crops)
    for i, crop in enumerate(crops):
        degraded[i] = degrade(crop, np.random.default_rng([seed, zlib.crc32(crop.tobytes())]))
    return degraded
