"""Write an ONNX face recogniser that is one matrix product, and its manifest."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DIM = 5


def weights(pixels: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(pixels, DIM)).astype(np.float32)


def tiny_onnx(folder: Path, batch: int | None = None, shape: tuple[int, int, int] = (3, 112, 112), **says: Any) -> Path:
    """Write `tiny.onnx` and return the path of its manifest. batch: None is any number; says: more for the manifest"""
    pixels = int(np.prod(shape))
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["face", "flat"], ["row"]),
            helper.make_node("MatMul", ["row", "weights"], ["code"]),
            helper.make_node("Neg", ["code"], ["minus"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("face", TensorProto.FLOAT, [batch or "n", *shape])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch or "n", DIM]) for name in ("code", "minus")],
        [
            numpy_helper.from_array(np.array([-1, pixels]), "flat"),
            numpy_helper.from_array(weights(pixels), "weights"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "tiny.onnx")
    digest = hashlib.sha256((folder / "tiny.onnx").read_bytes()).hexdigest()
    manifest = {"file": "tiny.onnx", "sha256": digest, "dim": DIM, "licence": "CC0"} | says
    (folder / "tiny.json").write_text(json.dumps(manifest))
    return folder / "tiny.json"
