"""Random photos, boxes, landmarks and crops: no detector, landmarker, aligner or descriptor raises an error over any.

`FUZZ_CASES=5000 pytest tests/fuzz/test_front_end.py` tries more of each than the default.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ml import registry
from ml.aligners.similarity import CROP_SIZES_PIXELS, Similarity
from ml.descriptors.base import CROP_SHAPES, Descriptor
from ml.detectors.base import Detector
from ml.errors import Unavailable, WrongShape
from ml.pipeline import default_front_end
from ml.synthetic_faces import draw, person
from ml.types import Box, Detection, Image

CASES = int(os.environ.get("FUZZ_CASES", "200"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
FRONT_END = default_front_end()
FACE = draw(person(0), 0, 200)
SIDES = (1, 2, 3, 5, 7, 11, 16, 31, 63, 64, 65, 127, 200, 257)
LONG_SIDES = (2_000, 5_000, 16_384)
DESCRIPTORS = ("lbp", "cslbp", "fplbp", "sift", "dlib_resnet")


def draw_photo(draw_from: np.random.Generator) -> Image:
    """Draw a photo: constant, noise, stripes, a ramp or a cut face, of an odd and sometimes extreme shape."""
    height, width = (int(draw_from.choice(SIDES)) for _ in range(2))
    if draw_from.random() < 0.2:
        height, width = draw_from.permutation([int(draw_from.choice(LONG_SIDES)), int(draw_from.choice(SIDES[:6]))])
    shape, kind = (int(height), int(width), 3), draw_from.integers(5)
    if kind == 0:
        return np.full(shape, draw_from.integers(256), np.uint8)
    if kind == 1:
        return draw_from.integers(0, 256, shape, np.uint8)
    if kind == 2:
        return np.broadcast_to((np.arange(shape[1]) % 2 * 255).astype(np.uint8)[None, :, None], shape).copy()
    if kind == 3:
        return np.broadcast_to(np.linspace(0, 255, shape[0]).astype(np.uint8)[:, None, None], shape).copy()
    top, left = draw_from.integers(0, 150, 2)
    return FACE[top : top + shape[0], left : left + shape[1]].copy()


def draw_number(draw_from: np.random.Generator) -> float:
    """Draw a coordinate: zero, within a photo, at its border, far outside, tiny, or huge."""
    size = 10.0 ** draw_from.choice([-9, 0, 1, 2, 2, 2, 3, 6, 9])
    return float(draw_from.choice([0.0, 1.0, draw_from.normal()]) * size)


def is_valid(crop: NDArray[Any], kind: str) -> bool:
    return crop.shape == CROP_SHAPES[kind] and crop.dtype == np.uint8  # type: ignore[index]


def test_the_detector_takes_any_photo() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(CASES):
        for face in FRONT_END.faces(draw_photo(rng)):
            assert all(is_valid(crop, kind) for kind, crop in face.crops.items())
            assert np.isfinite(face.landmarks).all()


def test_yunet_takes_any_photo(shared: Path) -> None:
    path = shared / "data" / "models" / "face_detection_yunet_2023mar.onnx"
    detector: Detector = registry.build("detectors", "yunet", path=path)
    rng = np.random.default_rng(SEED)
    for _ in range(CASES):
        detector.detect(draw_photo(rng))


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((9, 9), np.uint8),
        np.zeros((9, 9, 1), np.uint8),
        np.zeros((9, 9, 4), np.uint8),
        np.zeros((9, 9, 3), np.uint16),
        np.zeros((9, 9, 3), np.float32),
        np.zeros((0, 9, 3), np.uint8),
        np.zeros((9, 0, 3), np.uint8),
    ],
)
def test_an_array_that_is_no_rgb_photo_is_refused(image: Any) -> None:
    with pytest.raises(WrongShape):
        FRONT_END.detector.detect(image)


def test_the_landmarker_takes_any_box() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(CASES):
        box = Box(*(draw_number(rng) for _ in range(4)))
        face = FRONT_END.align(draw_photo(rng), Detection(box, 0.0))
        assert face is None or all(is_valid(crop, kind) for kind, crop in face.crops.items())


def test_the_aligner_takes_any_landmarks() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(CASES):
        points = np.array([[draw_number(rng), draw_number(rng)] for _ in range(5)], np.float32)
        if rng.random() < 0.2:
            points[:] = points[0]
        crops = Similarity().crops(draw_photo(rng), points)
        assert all(is_valid(crop, kind) for kind, crop in crops.items())


def test_any_photo_can_be_taken_as_an_aligned_face() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(CASES):
        face = FRONT_END.aligned(draw_photo(rng))
        assert face.crops.keys() == CROP_SIZES_PIXELS.keys()
        assert all(is_valid(crop, kind) for kind, crop in face.crops.items())


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_a_descriptor_takes_any_crop(name: str) -> None:
    rng = np.random.default_rng(SEED)
    try:
        descriptor: Descriptor = registry.build("descriptors", name)
    except Unavailable as error:
        pytest.skip(str(error))
    for _ in range(max(1, CASES // 10)):
        faces = [FRONT_END.aligned(draw_photo(rng)) for _ in range(5)]
        rows = descriptor.describe(np.stack([face.crops[descriptor.crop] for face in faces]))
        assert rows.shape == (5, descriptor.dim)
        assert np.isfinite(rows).all()
