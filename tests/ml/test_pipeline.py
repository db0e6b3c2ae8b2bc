"""A photo becomes aligned faces, with the default front end; aligned pictures are not changed."""

import tarfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage.data import astronaut

from ml.aligners.similarity import TEMPLATES
from ml.descriptors.base import CROP_SHAPES
from ml.errors import Unavailable, UnknownComponent
from ml.geometry import moved, similarity
from ml.images import read
from ml.landmarks.regressor import Regressor
from ml.pipeline import FrontEnd, default_front_end
from ml.synthetic_faces import draw, person
from ml.types import AlignedFace, Image

FRONT = default_front_end()


def same(a: AlignedFace, b: AlignedFace) -> bool:
    return (
        a.box == b.box and bool((a.landmarks == b.landmarks).all()) and bool((a.crops["grey"] == b.crops["grey"]).all())
    )


def crops_of(photo: Image) -> list[np.ndarray]:
    return [face.crops["colour"] for face in default_front_end().faces(photo)]


def test_a_real_face_comes_out_aligned_and_good_enough() -> None:
    face = FRONT.faces(astronaut())[0]
    assert {kind: crop.shape for kind, crop in face.crops.items()} == CROP_SHAPES
    assert face.quality.reasons == ()
    on_template = moved(similarity(face.landmarks, TEMPLATES["grey"]), face.landmarks)
    assert np.abs(on_template - TEMPLATES["grey"]).max() < 8


def test_all_faces_of_a_photo_come_largest_first() -> None:
    photo = np.full((420, 800, 3), 128, np.uint8)
    photo[10:260, 10:260] = draw(person(0), 0, 250, strength=0)
    photo[10:410, 380:780] = draw(person(1), 0, 400, strength=0)
    faces = FRONT.faces(photo)
    assert len(faces) == 2
    assert faces[0].box.x > 380 > faces[1].box.x


def test_a_photo_without_a_face_has_none() -> None:
    assert FRONT.faces(np.full((200, 300, 3), 50, np.uint8)) == []


@pytest.mark.parametrize("size", [(170, 100), (112, 112)])
def test_a_picture_of_a_crop_s_own_size_passes_through(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    kind = "grey" if size == (170, 100) else "colour"
    crop = rng.integers(0, 255, CROP_SHAPES[kind], np.uint8)
    face = FRONT.aligned(crop if crop.ndim == 3 else np.repeat(crop[:, :, None], 3, 2))
    assert (face.crops[kind] == crop).all()
    assert {k: c.shape for k, c in face.crops.items()} == CROP_SHAPES
    assert (face.box.width, face.box.height) == size[::-1]


def test_the_second_crop_of_a_crop_has_the_points_in_the_same_positions() -> None:
    whole = FRONT.faces(astronaut())[0]
    colour = FRONT.aligned(np.repeat(whole.crops["grey"][:, :, None], 3, 2)).crops["colour"]
    grey = cv2.cvtColor(whole.crops["colour"], cv2.COLOR_RGB2GRAY)
    inner = (slice(20, 100), slice(20, 92))
    assert np.abs(colour[..., 0].astype(int) - grey)[inner].mean() < 6


@pytest.mark.parametrize("size", [(250, 250), (89, 109), (400, 100), (1, 1), (60, 900)])
def test_any_other_picture_is_fitted_about_its_middle(size: tuple[int, int]) -> None:
    height, width = size
    picture = np.zeros((height, width, 3), np.uint8)
    picture[:, :, 0] = np.linspace(0, 255, width)
    face = FRONT.aligned(picture)
    assert {kind: crop.shape for kind, crop in face.crops.items()} == CROP_SHAPES
    across = face.crops["colour"][56, :, 0].astype(int)
    if width > 50:
        assert (np.diff(across) >= 0).all()
        assert abs((across[0] + across[-1]) - 255) < 14


def test_several_threads_give_the_same_results_as_one() -> None:
    photos = [draw(person(i), 0) for i in range(6)]
    alone = [FRONT.faces(photo)[0] for photo in photos]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda photo: FRONT.faces(photo)[0], photos))
    assert all(same(a, b) for a, b in zip(alone, together, strict=True))


def test_another_process_gives_the_same_results() -> None:
    photo = draw(person(0), 0)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        [there] = pool.submit(crops_of, photo).result()
    assert (there == crops_of(photo)[0]).all()


def test_yunet_may_take_the_detector_s_place(shared: Path) -> None:
    front = default_front_end("yunet", shared / "data" / "models" / "face_detection_yunet_2023mar.onnx")
    ours, theirs = FRONT.faces(astronaut())[0], front.faces(astronaut())[0]
    eyes = np.linalg.norm(ours.landmarks[1] - ours.landmarks[0])
    assert np.abs(ours.landmarks - theirs.landmarks).max() < 0.1 * eyes


def test_a_missing_detector_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnknownComponent, match="hog"):
        default_front_end("eyes")
    with pytest.raises(Unavailable, match="pull yunet"):
        default_front_end("yunet", tmp_path / "none.onnx")
    with pytest.raises(Unavailable, match="pull yunet"):
        default_front_end("yunet")


def test_the_middle_face_of_nearly_every_real_photo_is_found_and_good_enough(shared: Path) -> None:
    photos_recognised = []
    with tarfile.open(shared / "data" / "lfw-deepfunneled-3.tar") as tar:
        files = [member for member in tar if member.isfile()][::20][:80]
        for member in files:
            stream = tar.extractfile(member)
            assert stream is not None
            faces = FRONT.faces(read(stream.read()))
            photos_recognised.append(bool(faces) and not faces[0].quality.reasons)
    assert np.mean(photos_recognised) >= 0.97


def test_a_front_end_built_of_the_default_parts_equals_the_default() -> None:
    front = FrontEnd(FRONT.detector, Regressor())
    assert same(front.faces(astronaut())[0], FRONT.faces(astronaut())[0])
