"""dlib's recogniser gives dlib's numbers, and says what is wrong with its weights."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ml.aligners.similarity import TEMPLATES, Similarity
from ml.descriptors import dlib_resnet
from ml.descriptors.common.dlib_network import build_model
from ml.descriptors.common.dlib_weights import DlibReader, read_network
from ml.descriptors.dlib_resnet import CHIP_POINTS, MEAN_COLOUR, DlibResnet, cut_chips, find_weights
from ml.errors import Corrupt, Unavailable
from ml.synthetic_faces import person, photograph
from ml.types import Crops
from tests.conftest import SHARED

CHIPS = 20
SAME_NUMBERS = 1e-4
HALF = 5e-4
"""Numbers below 1 are kept in half precision."""


@pytest.fixture(scope="module")
def weights() -> Path:
    try:
        return find_weights()
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def synthetic_crops() -> Crops:
    photos = (photograph(person(number), 0, 160) for number in range(CHIPS))
    return np.stack([Similarity().crops(image, points)["colour"] for image, points in photos])


def by_dlib(weights: Path, chips: Crops) -> np.ndarray:
    dlib = pytest.importorskip("_dlib_pybind11")
    network = dlib.face_recognition_model_v1(str(weights))
    return np.array([np.array(network.compute_face_descriptor(chip)) for chip in chips])


def ours(chips: Crops) -> np.ndarray:
    """Return our rows before they are divided by their norm."""
    rows: np.ndarray = DlibResnet()._run.run(None, {dlib_resnet.INPUT_NAME: chips})[0]
    return rows


def test_drawn_faces_get_the_numbers_of_dlib(weights: Path, synthetic_crops: Crops) -> None:
    chips = cut_chips(synthetic_crops)
    np.testing.assert_allclose(ours(chips), by_dlib(weights, chips), atol=SAME_NUMBERS, rtol=0)


def test_real_faces_get_the_numbers_of_dlib(weights: Path, shared: Path) -> None:
    from app.cli.datasets.lfw import LfwDataset
    from ml import images
    from ml.pipeline import default_front_end

    front_end, crops = default_front_end(), []
    for _, data in LfwDataset(SHARED / "data").photos():
        crops += [face.crops["colour"] for face in front_end.faces(images.read(data))[:1]]
        if len(crops) == CHIPS:
            break
    chips = cut_chips(np.stack(crops))
    np.testing.assert_allclose(ours(chips), by_dlib(weights, chips), atol=SAME_NUMBERS, rtol=0)


def test_a_face_has_the_unit_row_of_its_chip(weights: Path, synthetic_crops: Crops) -> None:
    rows = ours(cut_chips(synthetic_crops))
    described = DlibResnet().describe(synthetic_crops)
    np.testing.assert_allclose(described, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=HALF)
    np.testing.assert_allclose(np.linalg.norm(described, axis=1), 1, atol=HALF)


def test_the_chip_shows_each_point_of_the_crop_near_where_the_network_expects_it() -> None:
    """A similarity cannot map five points to five others exactly; they must lie within 3.5 of 150 pixels."""
    for here, there in zip(TEMPLATES["colour"], CHIP_POINTS, strict=True):
        crop = np.zeros((1, 112, 112, 3), np.uint8)
        x, y = np.round(here).astype(int)
        crop[0, y - 2 : y + 3, x - 2 : x + 3] = 255
        [chip] = cut_chips(crop)[..., 0]
        down, across = np.nonzero(chip > 200)
        assert np.hypot(across.mean() - there[0], down.mean() - there[1]) < 3.5


def test_parts_of_the_chip_outside_the_crop_have_the_networks_mean_colour(weights: Path) -> None:
    [chip] = cut_chips(np.full((1, 112, 112, 3), 40, np.uint8))
    assert (chip[:125, 10:140] == 40).all()
    assert (chip[-15:] == MEAN_COLOUR).all()
    means = read_network(weights.read_bytes()).means
    np.testing.assert_allclose(means, MEAN_COLOUR, atol=0.5)


def test_the_package_is_found_without_being_imported(weights: Path) -> None:
    program = (
        "import sys; from ml.descriptors.dlib_resnet import DlibResnet; DlibResnet().load(); "
        "print('face_recognition_models' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_file_but_the_recogniser_is_opened(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The landmark file of the same package may not be used commercially."""
    opened: list[str] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path.name) or read_bytes(path))
    dlib_resnet._session.cache_clear()
    DlibResnet().load()
    assert opened == ["dlib_face_recognition_resnet_model_v1.dat"]


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlib_resnet, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"pip install face_recognition_models==0\.3\.0"):
        DlibResnet().load()


def test_a_package_without_the_file_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Found:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(dlib_resnet, "find_spec", lambda name: Found())
    with pytest.raises(Unavailable, match="not installed"):
        DlibResnet().load()


@pytest.mark.parametrize("kept", [0, 1000, 22_466_065])
def test_truncated_weights_are_corrupt(kept: int, weights: Path, tmp_path: Path) -> None:
    short = tmp_path / weights.name
    short.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(Corrupt, match=r"truncated or a different file; run: pip install .* --force-reinstall"):
        DlibResnet(weights=str(short)).load()


def test_another_file_is_corrupt_and_a_missing_one_unavailable(tmp_path: Path) -> None:
    other = tmp_path / "other.dat"
    other.write_bytes(b"something else")
    with pytest.raises(Corrupt, match=hashlib.sha256(b"something else").hexdigest()):
        DlibResnet(weights=str(other)).load()
    with pytest.raises(Unavailable, match=r"nowhere\.dat"):
        DlibResnet(weights=str(tmp_path / "nowhere.dat")).load()


@pytest.mark.parametrize("kept", [1, 20, 300, 19_000, 5_000_000, 22_400_000])
def test_a_network_that_ends_early_is_corrupt(kept: int, weights: Path) -> None:
    """Behind the hash, the reader holds by itself."""
    with pytest.raises(Corrupt):
        build_model(read_network(weights.read_bytes()[:kept]))


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"\x01\x05", 5), (b"\x81\x11", -17), (b"\x02\x80\x12", 4736), (b"\x03\x62\x90\xf5", 16093282)],
)
def test_integers_are_read_as_dlib_writes_them(data: bytes, value: int) -> None:
    reader = DlibReader(data)
    assert reader.read_integer() == value
    assert reader.at_end


def test_a_float_is_a_mantissa_and_an_exponent() -> None:
    assert DlibReader(b"\x03\x62\x90\xf5\x81\x11").read_float() == pytest.approx(122.782, abs=1e-5)
    with pytest.raises(Corrupt, match="ends too early"):
        DlibReader(b"\x03\x62").read_float()
