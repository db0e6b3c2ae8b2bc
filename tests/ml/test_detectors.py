"""Detectors: faces large and small, at the rim, none at all; from several threads; YuNet where its file is."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage.data import astronaut

from ml.detectors.base import Detector, centre_face
from ml.detectors.hog import Hog
from ml.detectors.yunet import Yunet
from ml.errors import Unavailable, WrongShape
from ml.synthetic_faces import draw, person
from ml.types import Box, Detection, Image

FACE = Box(173, 60, 100, 130)
"""The astronaut's face in her photo."""


def overlap(a: Box, b: Box) -> float:
    wide = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
    high = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
    both = max(wide, 0) * max(high, 0)
    return both / (a.area + b.area - both)


@pytest.fixture
def yunet(shared: Path) -> Yunet:
    return Yunet(shared / "data" / "models" / "face_detection_yunet_2023mar.onnx")


@pytest.fixture(params=["hog", "yunet"])
def detector(request: pytest.FixtureRequest) -> Detector:
    return Hog() if request.param == "hog" else request.getfixturevalue("yunet")


def a_crowd() -> tuple[Image, list[float]]:
    """Four drawn people at sizes 400, 300 and 200 beside and below one another, and the middles of their faces."""
    photo = np.full((700, 1000, 3), 128, np.uint8)
    middles = []
    for number, (x, y, size) in enumerate([(20, 20, 400), (450, 50, 300), (760, 10, 200), (500, 400, 300)]):
        photo[y : y + size, x : x + size] = draw(person(number), 0, size, strength=0)
        middles.append(x + size / 2)
    return photo, middles


def test_a_real_face_is_found_where_it_is(detector: Detector) -> None:
    largest = detector.detect(astronaut())[0]
    assert overlap(largest.box, FACE) > 0.5


def test_drawn_people_in_one_photo_are_all_found_largest_first() -> None:
    photo, middles = a_crowd()
    detections = Hog().detect(photo)
    areas = [face.box.area for face in detections]
    assert areas == sorted(areas, reverse=True)
    centres = sorted(face.box.x + face.box.width / 2 for face in detections)
    assert np.allclose(centres, sorted(middles), atol=20)


@pytest.mark.parametrize("scale", [0.25, 0.5, 1, 4])
def test_a_photo_of_any_size_gives_the_same_face(scale: float) -> None:
    photo = astronaut()[:300, 80:380]
    sized = cv2.resize(photo, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
    box = Hog().detect(sized)[0].box
    back = Box(box.x / scale, box.y / scale, box.width / scale, box.height / scale)
    assert overlap(back, Hog().detect(photo)[0].box) > 0.6


def test_a_face_that_fills_its_photo_is_found() -> None:
    tight = astronaut()[65:190, 170:275]
    [detection] = Hog().detect(tight)
    assert overlap(detection.box, Box(0, 0, 105, 125)) > 0.6


@pytest.mark.parametrize("size", [(1, 1), (3, 500), (500, 3), (250, 250)])
def test_no_face_is_found_in_a_photo_without_one(detector: Detector, size: tuple[int, int]) -> None:
    assert detector.detect(np.full((*size, 3), 90, np.uint8)) == []


def test_threads_that_share_a_detector_find_the_same_faces_as_one_thread(detector: Detector) -> None:
    photos = [astronaut()] + [draw(person(i), i) for i in range(7)]
    alone = [[face.box for face in detector.detect(photo)] for photo in photos]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda photo: [face.box for face in detector.detect(photo)], photos * 3))
    assert together == alone * 3


def test_the_middle_face_is_the_one_nearest_the_middle() -> None:
    sides = [Detection(Box(x, 40, 20, 20), 1.0) for x in (0, 38, 80)]
    photo = np.zeros((100, 100, 3), np.uint8)
    assert centre_face(sides, photo) is sides[1]
    assert centre_face([], photo) is None


def test_yunet_gives_five_points_inside_its_box(yunet: Yunet) -> None:
    face = yunet.detect(astronaut())[0]
    assert face.landmarks is not None
    left_eye, right_eye, nose, left_mouth, right_mouth = face.landmarks
    assert left_eye[0] < nose[0] < right_eye[0]
    assert left_eye[1] < nose[1] < left_mouth[1]
    assert left_mouth[0] < right_mouth[0]


def test_a_missing_yunet_file_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="likeness detectors pull yunet"):
        Yunet(tmp_path / "nowhere.onnx")


def test_a_yunet_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "y.onnx").write_bytes(b"not a model")
    with pytest.raises(Unavailable, match="cannot be loaded"):
        Yunet(tmp_path / "y.onnx")


@pytest.mark.parametrize("image", [np.zeros((9, 9), np.uint8), np.zeros((9, 9, 3)), np.zeros((0, 9, 3), np.uint8)])
def test_what_is_no_rgb_photo_is_refused(image: Image) -> None:
    with pytest.raises(WrongShape, match="RGB"):
        Hog().detect(image)
