"""Every descriptor keeps the contract of its base."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml import registry
from ml.descriptors.base import CROP_SHAPES, Descriptor
from ml.descriptors.common.crop_descriptors import list_crop_descriptors
from ml.descriptors.common.file_backed import find_descriptor, manifest_types
from ml.descriptors.common.manifest import CnnManifest, OnnxManifest
from ml.descriptors.dlib_resnet import is_installed
from ml.errors import Corrupt, Unavailable, UnknownComponent, WrongShape
from ml.types import Crops
from tests.ml.tiny_cnn import tiny_cnn
from tests.ml.tiny_onnx import tiny_onnx

SMALL: dict[str, dict[str, Any]] = {"fisher": {"axes": 6, "components": 5, "patches": 40}}
"""What those that learn from crops learn in these tests."""


@pytest.fixture(params=list_crop_descriptors())
def descriptor(request: pytest.FixtureRequest, tmp_path: Path) -> Descriptor:
    manifests = {"onnx": tiny_onnx, "cnn": tiny_cnn}
    kind = registry.component("descriptors", request.param)
    needs: dict[str, Any] = {}
    if request.param in manifests:
        needs = {"manifest": str(manifests[request.param](tmp_path))}
    if request.param == "dlib_resnet" and not is_installed():
        pytest.skip("needs the weights of the extra `recogniser`, which are not installed")
    built: Descriptor = kind(**needs)
    return built if built.is_ready else kind(**kind.learn(noise(kind, 12), tmp_path, **SMALL[request.param]))


def noise(descriptor: Descriptor | type[Descriptor], n: int, seed: int = 0) -> Crops:
    shape = (n, *CROP_SHAPES[descriptor.crop])
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_rows_are_finite_float32_one_a_crop(descriptor: Descriptor) -> None:
    rows = descriptor.describe(noise(descriptor, 3))
    assert (rows.shape, rows.dtype) == ((3, descriptor.dim), np.float32)
    assert np.isfinite(rows).all()


def test_no_crops_give_no_rows(descriptor: Descriptor) -> None:
    assert descriptor.describe(noise(descriptor, 0)).shape == (0, descriptor.dim)


def test_a_crop_has_the_same_descriptor_alone_and_in_a_batch(descriptor: Descriptor) -> None:
    crops = noise(descriptor, 4)
    together = descriptor.describe(crops)
    alone = np.concatenate([descriptor.describe(crop[None]) for crop in crops])
    np.testing.assert_allclose(together, alone, atol=1e-3 if descriptor.is_costly else 1e-5)


def test_the_same_crops_give_the_same_bits(descriptor: Descriptor) -> None:
    crops = noise(descriptor, 2)
    assert descriptor.describe(crops).tobytes() == descriptor.describe(crops.copy()).tobytes()


def test_other_faces_give_other_rows(descriptor: Descriptor) -> None:
    one, other = descriptor.describe(noise(descriptor, 1, 1)), descriptor.describe(noise(descriptor, 1, 2))
    assert np.abs(one - other).max() > 1e-3


def test_a_mirrored_descriptor_equals_the_descriptor_of_the_mirror_image(descriptor: Descriptor) -> None:
    both, crops = replace(descriptor, mirrored=True), noise(descriptor, 2)
    flipped = np.ascontiguousarray(crops[:, :, ::-1])
    rows = both.describe(crops)
    half = (descriptor.describe(crops) + descriptor.describe(flipped)) / 2
    near = 1e-3 if descriptor.is_costly else 1e-6
    np.testing.assert_allclose(rows, half, atol=near)
    np.testing.assert_allclose(rows, both.describe(flipped), atol=near)
    assert np.abs(rows - descriptor.describe(crops)).max() > 1e-3
    assert both.cells is None


@pytest.mark.parametrize("value", [0, 128, 255])
def test_a_crop_of_one_colour_is_described_too(descriptor: Descriptor, value: int) -> None:
    crops = np.full_like(noise(descriptor, 1), value)
    assert np.isfinite(descriptor.describe(crops)).all()


@pytest.mark.parametrize("wrong", ["cut", "float", "no batch"])
def test_crops_of_another_shape_or_type_are_refused(descriptor: Descriptor, wrong: str) -> None:
    crops: Any = noise(descriptor, 2)
    wrongs = {"cut": crops[:, 1:], "float": crops.astype(np.float32), "no batch": crops[0]}
    with pytest.raises(WrongShape, match="crops"):
        descriptor.describe(wrongs[wrong])


@pytest.mark.parametrize("name", list_crop_descriptors())
def test_what_is_learned_from_crops_is_the_same_for_the_same_crops(name: str, tmp_path: Path) -> None:
    kind = registry.component("descriptors", name)
    options = kind.learn(noise(kind, 12), tmp_path, 3, **SMALL.get(name, {}))
    assert json.loads(json.dumps(options)) == options, "a model's manifest holds them"
    assert kind.learn(noise(kind, 12), tmp_path, 3, **SMALL.get(name, {})) == options


def test_an_unknown_descriptor_names_those_that_there_are() -> None:
    with pytest.raises(UnknownComponent, match="lbp"):
        registry.build("descriptors", "lpb")


def test_a_misspelt_option_is_an_error() -> None:
    with pytest.raises(TypeError):
        registry.build("descriptors", "lbp", cells=10)


def test_descriptors_declare_which_of_them_run_a_file_of_the_operator() -> None:
    assert manifest_types() == {"cnn": CnnManifest, "onnx": OnnxManifest}


@pytest.mark.parametrize(("name", "write"), [("onnx", tiny_onnx), ("cnn", tiny_cnn)])
def test_a_manifest_names_its_descriptor(name: str, write: Callable[[Path], Path], tmp_path: Path) -> None:
    assert find_descriptor(write(tmp_path)) == name


@pytest.mark.parametrize("name", manifest_types())
def test_the_required_fields_of_a_manifest_suffice_to_tell_its_descriptor(name: str, tmp_path: Path) -> None:
    required = [field.name for field in fields(manifest_types()[name]) if field.default is MISSING]
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(dict.fromkeys(required, "?")))
    assert find_descriptor(path) == name


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no manifest at .*gone\.json"):
        find_descriptor(tmp_path / "gone.json")


def test_a_file_without_a_json_object_is_no_manifest(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text("[1]")
    with pytest.raises(Corrupt, match=r"list\.json is not a manifest"):
        find_descriptor(path)


def test_listing_the_descriptors_does_not_import_torch() -> None:
    code = "import sys; from ml.descriptors.common import file_backed; file_backed.manifest_types()"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
