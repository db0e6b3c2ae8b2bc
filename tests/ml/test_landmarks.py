"""Landmarks: near the truth on drawn faces, near YuNet's on a real one, steady under mirroring, turning and jitter."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import pytest
from skimage.data import astronaut

from ml.detectors.hog import Hog
from ml.detectors.yunet import Yunet
from ml.errors import Unavailable
from ml.geometry import moved, similarity
from ml.landmarks.base import MIRRORED_ORDER
from ml.landmarks.common.patch_frames import TEMPLATE, WIDE_PATCH_PIXELS, WIDE_TEMPLATE
from ml.landmarks.median import Median
from ml.landmarks.regressor import Regressor
from ml.landmarks.training import train
from ml.landmarks.training.fit import LandmarkRecipe, accuracy, export, fit
from ml.registry import names
from ml.synthetic_faces import person, photograph
from ml.types import Box, Detection, Image, Points

HOG, OURS = Hog(), Regressor()


def off(points: Points, truth: Points) -> float:
    """The farthest point, in eye distances."""
    return float(np.linalg.norm(points - truth, axis=1).max() / np.linalg.norm(truth[1] - truth[0]))


def located(image: Image) -> Points:
    points = OURS.locate(image, HOG.detect(image)[0])
    assert points is not None
    return points


def test_the_points_of_drawn_people_are_found() -> None:
    misses = []
    for number in range(40):
        photo, truth = photograph(person(number), number)
        faces = HOG.detect(photo)
        points = OURS.locate(photo, faces[0]) if faces else None
        misses.append(np.inf if points is None else off(points, truth))
    assert np.median(misses) < 0.12
    assert np.mean(np.array(misses) < 0.25) > 0.85


def test_the_mirrored_photo_has_the_mirrored_points() -> None:
    photo = astronaut()
    flipped = located(np.ascontiguousarray(photo[:, ::-1]))
    back = np.column_stack([photo.shape[1] - 1 - flipped[:, 0], flipped[:, 1]])[MIRRORED_ORDER]
    assert off(back, located(photo)) < 0.05


@pytest.mark.parametrize("degrees", [-20, 20])
def test_a_turned_face_has_turned_points(degrees: float) -> None:
    photo = astronaut()
    matrix = cv2.getRotationMatrix2D((223, 125), degrees, 1.0)
    turned = cv2.warpAffine(photo, matrix, photo.shape[1::-1])
    points = OURS.locate(turned, HOG.detect(photo)[0])
    assert points is not None
    assert off(points, moved(matrix, located(photo))) < 0.1


def test_a_box_that_is_off_leads_to_the_same_points() -> None:
    photo, box = astronaut(), HOG.detect(astronaut())[0].box
    steady = located(photo)
    for dx, dy, grow in [(-0.1, 0, 1), (0.1, 0.05, 1), (0, -0.1, 1), (0, 0, 0.85), (0, 0, 1.2)]:
        moved_box = Box(box.x + dx * box.width, box.y + dy * box.height, box.width * grow, box.height * grow)
        points = OURS.locate(photo, Detection(moved_box, 1.0))
        assert points is not None
        assert off(points, steady) < 0.08


def test_a_large_photo_has_the_points_of_the_small_one() -> None:
    small = astronaut()
    large = cv2.resize(small, None, fx=5, fy=5, interpolation=cv2.INTER_LINEAR)
    assert off((located(large) + 0.5) / 5 - 0.5, located(small)) < 0.05


def test_threads_that_share_a_landmarker_find_the_same_points_as_one_thread() -> None:
    photo, face = astronaut(), HOG.detect(astronaut())[0]
    with ThreadPoolExecutor(4) as pool:
        all_points = list(pool.map(lambda _: OURS.locate(photo, face), range(20)))
    assert all((points == all_points[0]).all() for points in all_points)


def test_ours_is_near_the_median_of_yunet_on_a_real_face(shared: Path) -> None:
    photo, face = astronaut(), HOG.detect(astronaut())[0]
    median = Median(Yunet(shared / "data" / "models" / "face_detection_yunet_2023mar.onnx"))
    assert median.runs(photo, face).shape == (10, 5, 2)
    truth = median.locate(photo, face)
    assert truth is not None
    assert off(located(photo), truth) < 0.1


def test_the_median_finds_no_points_if_no_run_finds_any() -> None:
    assert Median(HOG, (160,)).locate(np.full((200, 200, 3), 9, np.uint8), Detection(Box(50, 50, 90, 90), 1)) is None


def test_a_missing_model_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"ml\.landmarks\.train"):
        Regressor(tmp_path / "nowhere.onnx")


def test_the_network_is_loaded_with_the_first_photo(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, load = list[str](), onnxruntime.InferenceSession

    def count(path: str, *arguments: object, **options: object) -> onnxruntime.InferenceSession:
        loaded.append(path)
        return load(path, *arguments, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", count)
    ours, (photo, _) = Regressor(), photograph(person(0), 0)
    assert loaded == []
    for _ in range(2):
        ours.locate(photo, HOG.detect(photo)[0])
    assert loaded == [str(ours.path)]


def test_the_registry_lists_only_the_landmarkers() -> None:
    assert names("landmarks") == ("median", "regressor")


def draw_examples(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Patches of drawn people cut as the trainer cuts them."""
    examples = []
    for number in range(n):
        photo, points = photograph(person(number), number)
        frame = similarity(points, WIDE_TEMPLATE)
        patch = cv2.warpAffine(photo, frame, (WIDE_PATCH_PIXELS, WIDE_PATCH_PIXELS), borderMode=cv2.BORDER_REPLICATE)
        examples.append((cv2.cvtColor(patch, cv2.COLOR_RGB2GRAY), moved(frame, points)))
    return np.stack([patch for patch, _ in examples]), np.stack([points for _, points in examples])


RECIPE = LandmarkRecipe(epochs=8, batch=8, rate=1e-3)


def test_a_model_fitted_on_drawn_people_learns_and_is_the_same_each_time(tmp_path: Path) -> None:
    wide, points = draw_examples(48)
    losses: list[float] = []
    first = fit(wide, points, RECIPE, lambda _, loss: losses.append(loss))
    assert losses[-1] < losses[0] * 0.85
    again = fit(wide, points, RECIPE, lambda _, loss: None)
    for name, value in first.state_dict().items():
        assert (again.state_dict()[name] == value).all()
    assert 0 <= accuracy(first, wide, points, RECIPE) <= accuracy(first, wide, points, RECIPE, within=2.0) == 1
    export(first, tmp_path / "made.onnx")
    photo, truth = photograph(person(3), 3)
    made = Regressor(tmp_path / "made.onnx")
    located_points = made.locate(photo, Detection(Box(75, 75, 100, 100), 1.0))
    assert located_points is not None
    assert off(located_points, truth) < 0.6
    assert TEMPLATE.shape == located_points.shape


def test_the_trainer_reads_its_sources_and_never_lfw(tmp_path: Path) -> None:
    for folder in ("age/30", "identities/7", "lfw/Somebody", "distractors"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.jpg").write_bytes(folder.encode())
    assert list(train.iterate_photos(tmp_path)) == [b"age/30", b"identities/7"]


def test_the_example_maker_finds_the_points_and_skips_photos_without_a_face(shared: Path) -> None:
    maker = train.ExampleMaker(shared / "data" / "models" / "face_detection_yunet_2023mar.onnx")
    example = maker.make(cv2.imencode(".png", astronaut()[:, :, ::-1])[1].tobytes())
    assert example is not None
    assert example[0].shape == (WIDE_PATCH_PIXELS, WIDE_PATCH_PIXELS)
    assert off(example[1], WIDE_TEMPLATE.astype(np.float32)) < 0.5
    assert maker.make(b"no picture") is None
    assert maker.make(cv2.imencode(".png", np.zeros((99, 99, 3), np.uint8))[1].tobytes()) is None
