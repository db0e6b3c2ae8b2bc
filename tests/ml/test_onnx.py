"""An ONNX recogniser is fed as its manifest says, and refused with a reason where the two do not agree."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ml.descriptors.onnx import Onnx
from ml.errors import Corrupt, Unavailable, WrongShape
from tests.ml.tiny_onnx import DIM, tiny_onnx, weights

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
FACES = np.random.default_rng(1).integers(0, 256, (5, 112, 112, 3), dtype=np.uint8)


def slow(mean: float | list[float] = 127.5, scale: float | list[float] = 127.5) -> np.ndarray:
    """The tiny model by hand: RGB planes one after the other, a product, a norm."""
    planes = ((FACES.astype(np.float64) - mean) / scale).transpose(0, 3, 1, 2)
    rows = planes.reshape(len(FACES), -1) @ weights(3 * 112 * 112)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


HALF = 5e-4
"""Numbers below 1 are kept in half precision."""


def made(folder: Path, **options: Any) -> Onnx:
    return Onnx(manifest=str(tiny_onnx(folder, **options)))


@pytest.mark.parametrize("batch", [None, 1, 3], ids=["any number", "one by one", "three by three"])
def test_faces_are_described_as_the_model_says_whatever_its_batch(batch: int | None, tmp_path: Path) -> None:
    rows = made(tmp_path, batch=batch).describe(FACES)
    np.testing.assert_allclose(rows, slow(), atol=HALF)


def test_mean_and_scale_may_differ_by_channel(tmp_path: Path) -> None:
    mean, scale = [10.0, 20.0, 30.0], [1.0, 2.0, 3.0]
    rows = made(tmp_path, mean=mean, scale=scale).describe(FACES)
    np.testing.assert_allclose(rows, slow(mean, scale), atol=HALF)


def test_a_bgr_model_sees_the_channels_turned(tmp_path: Path) -> None:
    rows = made(tmp_path, colour="bgr").describe(FACES[..., ::-1])
    np.testing.assert_allclose(rows, slow(), atol=HALF)


def test_an_nhwc_model_sees_channels_last(tmp_path: Path) -> None:
    rows = made(tmp_path, shape=(112, 112, 3), layout="nhwc", normalise=False).describe(FACES)
    by_hand = (FACES.reshape(5, -1) - 127.5) / 127.5 @ weights(3 * 112 * 112)
    np.testing.assert_allclose(rows, by_hand, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("side", [56, 160])
def test_a_model_of_another_size_gets_resized_crops(side: int, tmp_path: Path) -> None:
    recogniser = made(tmp_path, shape=(3, side, side), size=[side, side], normalise=False)
    grey = np.full((1, 112, 112, 3), 255, np.uint8)
    np.testing.assert_allclose(recogniser.describe(grey)[0], weights(3 * side * side).sum(0), rtol=1e-2)


def test_the_output_is_chosen_by_name_and_the_first_where_none_is_named(tmp_path: Path) -> None:
    first = made(tmp_path).describe(FACES)
    np.testing.assert_allclose(made(tmp_path, output="minus").describe(FACES), -first, atol=1e-6)


def test_rows_have_norm_one_unless_the_manifest_says_otherwise(tmp_path: Path) -> None:
    np.testing.assert_allclose(np.linalg.norm(made(tmp_path).describe(FACES), axis=1), 1, atol=HALF)
    assert np.linalg.norm(made(tmp_path, normalise=False).describe(FACES), axis=1).max() > 2


def test_a_face_that_gives_only_zeros_stays_finite(tmp_path: Path) -> None:
    rows = made(tmp_path, mean=0, scale=1).describe(np.zeros((1, 112, 112, 3), np.uint8))
    assert not rows.any()


def test_threads_share_one_session(tmp_path: Path) -> None:
    recogniser = made(tmp_path, batch=1)
    alone = recogniser.describe(FACES).tobytes()
    with ThreadPoolExecutor(4) as pool:
        assert {rows.tobytes() for rows in pool.map(lambda _: recogniser.describe(FACES), range(8))} == {alone}


def test_a_manifest_or_model_that_is_not_there_says_where_it_was_sought(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"nowhere\.json"):
        Onnx(manifest=str(tmp_path / "nowhere.json"))
    path = tiny_onnx(tmp_path)
    (tmp_path / "tiny.onnx").unlink()
    with pytest.raises(Unavailable, match=r"tiny\.onnx is not beside"):
        Onnx(manifest=str(path))


def test_an_altered_model_is_corrupt(tmp_path: Path) -> None:
    path = tiny_onnx(tmp_path)
    with (tmp_path / "tiny.onnx").open("ab") as file:
        file.write(b"more")
    with pytest.raises(Corrupt, match="SHA-256"):
        Onnx(manifest=str(path))


def test_a_pinned_manifest_that_changed_is_corrupt(tmp_path: Path) -> None:
    pin = made(tmp_path).fingerprint
    assert Onnx(manifest=str(tmp_path / "tiny.json"), pin=pin).dim == DIM
    path = tiny_onnx(tmp_path, mean=0)
    with pytest.raises(Corrupt, match="not the one"):
        Onnx(manifest=str(path), pin=pin)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"colour": "grey"}, "rgb or bgr"),
        ({"layout": "chw"}, "nchw or nhwc"),
        ({"size": [112]}, "size"),
        ({"size": [0, 112]}, "size"),
        ({"dim": 0}, "dim"),
        ({"dim": "5"}, "dim"),
        ({"scale": 0}, "scale"),
        ({"mean": [1, 2]}, "mean"),
        ({"means": 1}, "unknown: means"),
        ({"file": 3}, "texts"),
    ],
)
def test_a_manifest_that_makes_no_sense_says_why(wrong: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match=reason):
        made(tmp_path, **wrong)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"file": "tiny.onnx"}', "null"])
def test_a_file_that_is_no_manifest_is_corrupt(text: str, tmp_path: Path) -> None:
    path = tiny_onnx(tmp_path)
    path.write_text(text)
    with pytest.raises(Corrupt, match=r"tiny\.json"):
        Onnx(manifest=str(path))


def test_a_file_that_is_no_model_is_corrupt(tmp_path: Path) -> None:
    path = tiny_onnx(tmp_path)
    manifest = json.loads(path.read_text()) | {"file": "tiny.json.txt"}
    (tmp_path / "tiny.json.txt").write_bytes(b"")
    manifest["sha256"] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    path.write_text(json.dumps(manifest))
    with pytest.raises(Corrupt, match="cannot load"):
        Onnx(manifest=str(path))


@pytest.mark.parametrize(
    "wrong", [{"size": [96, 112]}, {"layout": "nhwc"}, {"output": "embedding"}, {"dim": 4}], ids=str
)
def test_a_manifest_that_disagrees_with_the_model_is_a_wrong_shape(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(WrongShape, match=r"put of tiny\.onnx"):
        made(tmp_path, **wrong).describe(FACES)


def test_asking_for_a_gpu_where_there_is_none_says_what_to_do(tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("there is a GPU")
    with pytest.raises(Unavailable, match="onnxruntime-gpu"):
        Onnx(manifest=str(tiny_onnx(tmp_path)), device="cuda")


def test_a_real_recogniser_of_batch_one_gives_unit_rows(tmp_path: Path) -> None:
    model = SHARED / "models" / "mobilefacenet_112_128d.onnx"
    if not model.is_file():
        pytest.skip("needs ../shared/data/models/mobilefacenet_112_128d.onnx")
    says = {"file": str(model), "dim": 128, "sha256": "0" * 64, "licence": "unknown"}
    path = tmp_path / "mobilefacenet.json"
    path.write_text(json.dumps(says))
    with pytest.raises(Corrupt) as caught:
        Onnx(manifest=str(path))
    says["sha256"] = str(caught.value).split("SHA-256 ")[1].split(",")[0]
    path.write_text(json.dumps(says))
    rows = Onnx(manifest=str(path)).describe(FACES)
    assert rows.shape == (5, 128)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=HALF)
    single = Onnx(manifest=str(path)).describe(FACES[2:3])
    np.testing.assert_allclose(single[0], rows[2], atol=HALF)
