"""A recogniser tells synthetic people apart; random numbers, an untrained network and wrong preprocessing do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from ml.descriptors.common.onnx_signature import OnnxManifest
from ml.descriptors.onnx import Onnx
from ml.files import hash_file
from ml.recogniser_check import MIN_AUC, check_recogniser
from tests.ml.learned_onnx import DIM, learned_onnx, random_onnx
from tests.ml.tiny_onnx import tiny_onnx


def run(model: Path, dim: int, **more: Any) -> Onnx:
    path = model.with_suffix(".json")
    OnnxManifest(file=model.name, sha256=hash_file(model), dim=dim, licence="CC0", **more).write(path)
    return Onnx(manifest=str(path))


def test_a_recogniser_passes_with_room_to_spare(tmp_path: Path) -> None:
    result = check_recogniser(run(learned_onnx(tmp_path / "a.onnx"), DIM))
    assert result.passed
    assert result.auc > MIN_AUC + 0.05
    assert result.same > result.other + 0.2
    assert result.right_first > 0.8
    assert result.pixels_auc < MIN_AUC - 0.03


def test_an_untrained_network_does_not_pass_though_it_beats_chance(tmp_path: Path) -> None:
    result = check_recogniser(Onnx(manifest=str(tiny_onnx(tmp_path))))
    assert not result.passed
    assert result.repeatable
    assert 0.5 < result.auc < MIN_AUC - 0.05


def test_random_numbers_are_noticed_as_such(tmp_path: Path) -> None:
    result = check_recogniser(run(random_onnx(tmp_path / "a.onnx"), 16))
    assert not result.repeatable
    assert result.auc == pytest.approx(0.5, abs=0.15)
    assert not result.passed


def test_a_constant_does_not_pass(tmp_path: Path) -> None:
    result = check_recogniser(run(learned_onnx(tmp_path / "a.onnx", flip=0.0), DIM))
    assert result.auc == 0.5
    assert not result.passed


def test_the_real_recogniser_of_the_shared_data_passes_and_wrong_preprocessing_does_not(
    shared: Path, tmp_path: Path
) -> None:
    model = shared / "data" / "models" / "mobilefacenet_112_128d.onnx"
    says = {"file": str(model), "sha256": hash_file(model), "dim": 128, "licence": "unknown"}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(says))
    assert check_recogniser(Onnx(manifest=str(path))).auc > 0.95
    path.write_text(json.dumps(says | {"mean": 0, "scale": 1}))
    assert not check_recogniser(Onnx(manifest=str(path))).passed
