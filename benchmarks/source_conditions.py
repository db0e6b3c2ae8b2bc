"""The photos of the benchmark of sources: clean and degraded ones, and splits of the people on them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from app.cli.datasets.features import load_or_describe
from ml.evaluation.protocols import number_people
from ml.types import Crops, Ids, Rows
from papers.beyond.degradations import CLEAN, CONDITIONS, degrade_crops
from papers.harness.photos import Photos

OTHER_CAMERA = "16 pixels, another camera"
"""Small faces as `film_from_afar` makes them: no degradation that the service simulates is like it."""
OTHER_CAMERA_PIXELS = 16
BLUR_PIXELS = 0.45
"""The standard deviation of the blur, in pixels of the small face."""
CONTRAST, BRIGHTNESS = 0.85, 10.0
NOISE_STANDARD_DEVIATION = 4.0
OTHER_CAMERA_JPEG_QUALITY = 70
ALL_CONDITIONS = (*CONDITIONS, OTHER_CAMERA)


@dataclass(frozen=True, eq=False)
class Conditions:
    """The photos of one set under one recogniser: clean (N, d), and of `photos` (M,) also degraded (M, d)."""

    people: Ids
    clean: Rows
    photos: Ids
    degraded: Rows


@dataclass(frozen=True, eq=False)
class Split:
    """Indexes of clean photos, and positions of degraded ones, on both sides of a split of the people."""

    learned_clean: Ids
    learned_degraded: Ids
    queries: Ids
    gallery: Ids


def load_conditions(
    photos: Photos, photo_set: str, recogniser: str, names: Sequence[str]
) -> Iterator[tuple[str, Conditions]]:
    """Yield each condition of these names with its descriptors, which are cached beside the crops."""
    people = number_people(photos.names(photo_set))
    several = np.flatnonzero(np.bincount(people)[people] > 1)
    recipe = photos.recipe(recogniser)
    [built] = recipe.built
    clean = photos.feature(photo_set, recogniser)
    crops = photos.crops(photo_set, built.crop)
    for name in names:
        if name == CLEAN:
            yield name, Conditions(people, clean, several, clean[several])
            continue
        file = name.replace(",", "").replace(" ", "-")
        path = photos.cache / photo_set / f"{recogniser}-{recipe.keys[0]}-{file}.npy"
        degraded = crops[:0] if path.exists() else _degrade(np.ascontiguousarray(crops[several]), name)
        rows = load_or_describe(f"{recogniser}, {photo_set}, {name}", built, degraded, path, keep=True)
        yield name, Conditions(people, clean, several, rows)


def _degrade(crops: Crops, condition: str) -> Crops:
    return film_from_afar(crops) if condition == OTHER_CAMERA else degrade_crops(crops, condition)


def film_from_afar(crops: Crops, seed: int = 0) -> Crops:
    """Return (N, 112, 112, 3) crops as a blurred lens, a noisy sensor and JPEG leave them, enlarged by a cubic spline.

    The service simulates small faces otherwise: it averages pixels, and enlarges by linear interpolation.
    """
    rng = np.random.default_rng(seed)
    filmed = np.empty_like(crops)
    for i, crop in enumerate(crops):
        blurred = cv2.GaussianBlur(crop, (0, 0), BLUR_PIXELS * crop.shape[1] / OTHER_CAMERA_PIXELS)
        small = cv2.resize(blurred, (OTHER_CAMERA_PIXELS, OTHER_CAMERA_PIXELS), interpolation=cv2.INTER_NEAREST)
        noisy = np.rint(small * CONTRAST + BRIGHTNESS + rng.normal(0.0, NOISE_STANDARD_DEVIATION, small.shape))
        sensed = np.clip(noisy, 0, 255).astype(np.uint8)
        _, encoded = cv2.imencode(".jpg", sensed[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, OTHER_CAMERA_JPEG_QUALITY])
        decoded = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
        assert decoded is not None, "OpenCV reads what it has encoded"
        filmed[i] = cv2.resize(decoded[..., ::-1], crop.shape[1::-1], interpolation=cv2.INTER_CUBIC)
    return filmed


def draw_split(conditions: Conditions, min_photos: int, seed: int) -> Split:
    """Draw half of the people to learn from. The clean condition learns its source from half of their photos."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(conditions.people.max() + 1)
    is_learned = np.isin(conditions.people, order[: len(order) // 2])
    counts = np.bincount(conditions.people)
    rest = np.flatnonzero(~is_learned)
    searching = [p for p in np.unique(conditions.people[rest]) if counts[p] >= min_photos]
    queries = np.array([rng.choice(np.flatnonzero(conditions.people == p)) for p in searching])
    learned_degraded = np.flatnonzero(is_learned[conditions.photos])
    return Split(np.flatnonzero(is_learned), learned_degraded, queries, np.setdiff1d(rest, queries))
