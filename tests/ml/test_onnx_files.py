"""The metadata of an ONNX file is read; a file that cannot be a recogniser is refused with advice."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ml.descriptors.common.onnx_signature import OnnxManifest, inspect_onnx
from ml.errors import Corrupt, Unavailable, WrongShape
from tests.ml.learned_onnx import DIM, learned_onnx

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def flat(
    path: Path,
    shape: list[Any],
    *,
    kind: int = FLOAT,
    rows: int = -1,
    dim: int = 3 * 8 * 8,
    inputs: int = 1,
    outputs: tuple[str, ...] = ("row",),
) -> Path:
    """A network that lays the picture out as a row of `dim` numbers; `rows` of the reshape, -1 for as many as come."""
    names = ["face", "mask"][:inputs]
    nodes = [helper.make_node("Reshape", ["face", "shape"], [name]) for name in outputs]
    nodes += [helper.make_node("Identity", ["mask"], ["echo"])] if inputs == 2 else []
    graph = helper.make_graph(
        nodes,
        "flat",
        [helper.make_tensor_value_info(name, kind, shape) for name in names],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(np.array([rows, dim]), "shape")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("batch", [None, 1, 4])
def test_size_layout_batch_output_and_dim_are_read(batch: int | None, tmp_path: Path) -> None:
    layout = inspect_onnx(learned_onnx(tmp_path / "a.onnx", batch=batch))
    assert (layout.batch, layout.layout, layout.size, layout.size_is_fixed) == (batch, "nchw", (112, 112), True)
    assert layout.outputs == {"embedding": DIM}


def test_channels_last_is_seen(tmp_path: Path) -> None:
    layout = inspect_onnx(flat(tmp_path / "a.onnx", [1, 8, 8, 3]))
    assert (layout.layout, layout.size, layout.outputs) == ("nhwc", (8, 8), {"row": 192})


def test_both_outputs_are_listed_in_their_order(tmp_path: Path) -> None:
    layout = inspect_onnx(learned_onnx(tmp_path / "a.onnx", second_output=True))
    assert layout.outputs == {"attributes": 588, "embedding": DIM}


def test_open_sizes_are_112_unless_stated_and_must_run(tmp_path: Path) -> None:
    path = learned_onnx(tmp_path / "a.onnx", open_size=True)
    layout = inspect_onnx(path)
    assert (layout.size, layout.size_is_fixed) == ((112, 112), False)
    with pytest.raises(WrongShape, match=r"nchw, 64 x 64 pixels"):
        inspect_onnx(path, size=(64, 64))


def test_a_layout_left_open_is_the_one_that_runs(tmp_path: Path) -> None:
    layout = inspect_onnx(flat(tmp_path / "a.onnx", ["n", "a", "b", "c"], dim=3 * 112 * 2), size=(112, 2))
    assert layout.layout == "nchw"
    assert layout.outputs == {"row": 672}


@pytest.mark.parametrize(
    ("options", "stated", "reason"),
    [
        ({"shape": [1, 1, 8, 8], "dim": 64}, {}, "3 channels"),
        ({"shape": [1, 3, 8], "dim": 24}, {}, "four axes"),
        ({"shape": [1, 3, 8, 8], "kind": HALF}, {}, "float32"),
        ({"shape": [1, 3, 8, 8], "inputs": 2}, {}, "not a recogniser"),
        ({"shape": [1, 3, 8, 8]}, {"size": (9, 8)}, "8 x 8, as the file says"),
        ({"shape": [1, 3, 8, 8]}, {"layout": "nhwc"}, "layout nhwc"),
        ({"shape": ["n", 3, 8, 8], "rows": 1}, {}, "batch of 1 fixed"),
        ({"shape": [1, 3, 64, 64], "dim": 3 * 64 * 64}, {}, "2 to 4,096 numbers a picture"),
        ({"shape": [1, 3, 8, 8], "rows": 192, "dim": 1, "outputs": ()}, {}, "ONNX model|no float32 output"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value),
)
def test_a_file_that_cannot_be_a_recogniser_says_why(
    options: dict[str, Any], stated: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises((WrongShape, Corrupt), match=reason):
        inspect_onnx(flat(tmp_path / "a.onnx", **options), **stated)


def test_a_missing_file_and_an_invalid_model_give_different_errors(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no file"):
        inspect_onnx(tmp_path / "a.onnx")
    (tmp_path / "a.onnx").write_bytes(learned_onnx(tmp_path / "b.onnx").read_bytes()[:-1000])
    with pytest.raises(Corrupt, match="not an ONNX model"):
        inspect_onnx(tmp_path / "a.onnx")


def test_a_manifest_is_written_as_it_is_read_and_not_where_it_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    manifest = OnnxManifest("a.onnx", "0" * 64, 5, "CC0", size=(8, 9), colour="bgr", mean=(1.0, 2.0, 3.0))
    manifest.write(path)
    assert OnnxManifest.read(path) == manifest
    with pytest.raises(Corrupt, match="scale"):
        OnnxManifest("a.onnx", "0" * 64, 5, "CC0", scale=(0.0, 1.0, 1.0)).write(tmp_path / "b.json")
    assert not (tmp_path / "b.json").exists()
