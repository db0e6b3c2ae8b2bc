"""A small ONNX network that recognises synthetic faces by a discriminant projection of averaged pixels."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ml.aligners.similarity import Similarity
from ml.synthetic_faces import person, photograph

CELL, SIDE, DIM = 8, 14, 24
PEOPLE, PHOTOS = 40, 3
RIDGE = 0.003


@lru_cache(maxsize=1)
def projection() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The matrix, (3 * SIDE * SIDE, DIM), and the offset, (DIM,), of the projection.

    It applies to averaged pixels, scaled as (pixel - 127.5) / 127.5, channels first.
    """
    people = np.repeat(np.arange(PEOPLE), PHOTOS)
    crops = [
        Similarity().crops(*photograph(person(p), shot, 96))["colour"] for p in range(PEOPLE) for shot in range(PHOTOS)
    ]
    pixels = (np.stack(crops).astype(np.float64) - 127.5) / 127.5
    cells = (
        pixels.reshape(len(crops), SIDE, CELL, SIDE, CELL, 3).mean((2, 4)).transpose(0, 3, 1, 2).reshape(len(crops), -1)
    )
    means = np.stack([cells[people == p].mean(0) for p in range(PEOPLE)])
    within = (cells - means[people]) / np.sqrt(len(cells))
    _, spread, axes = np.linalg.svd(within, full_matrices=False)
    ridge = 4 * RIDGE
    whiten = np.eye(cells.shape[1]) / np.sqrt(ridge) + (axes.T * (1 / np.sqrt(spread**2 + ridge) - ridge**-0.5)) @ axes
    between = np.linalg.svd((means - means.mean(0)) @ whiten, full_matrices=False)[2][:DIM]
    matrix = whiten @ between.T
    return matrix.astype(np.float32), (-means.mean(0) @ matrix).astype(np.float32)


def learned_onnx(
    path: Path, *, batch: int | None = None, open_size: bool = False, second_output: bool = False, flip: float = 1.0
) -> Path:
    """Write the network to `path`.

    second_output: add another output before the embedding; flip: factor of the embedding, to make files that differ
    """
    matrix, offset = projection()
    size: list[Any] = ["height", "width"] if open_size else [112, 112]
    nodes = [
        helper.make_node("Clip", ["face", "low", "high"], ["pixels"]),  # pixels of another scale are lost on it
        helper.make_node("AveragePool", ["pixels"], ["cells"], kernel_shape=[CELL, CELL], strides=[CELL, CELL]),
        helper.make_node("Flatten", ["cells"], ["row"]),
        helper.make_node("MatMul", ["row", "matrix"], ["product"]),
        helper.make_node("Add", ["product", "offset"], ["embedding"]),
        helper.make_node("Tanh", ["row"], ["attributes"]),
    ]
    outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [batch or "n", DIM])]
    if second_output:
        outputs.insert(0, helper.make_tensor_value_info("attributes", TensorProto.FLOAT, [batch or "n", len(matrix)]))
    graph = helper.make_graph(
        nodes if second_output else nodes[:-1],
        "learned",
        [helper.make_tensor_value_info("face", TensorProto.FLOAT, [batch or "n", 3, *size])],
        outputs,
        [
            numpy_helper.from_array(np.float32(-1), "low"),
            numpy_helper.from_array(np.float32(1), "high"),
            numpy_helper.from_array(matrix * np.float32(flip), "matrix"),
            numpy_helper.from_array(offset * np.float32(flip), "offset"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def random_onnx(path: Path) -> Path:
    """Write a network of the right shapes whose output is random at every call."""
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["face"], ["mean"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Unsqueeze", ["mean", "one"], ["column"]),
            helper.make_node("Expand", ["column", "shape"], ["like"]),
            helper.make_node("RandomNormalLike", ["like"], ["embedding"]),
        ],
        "random",
        [helper.make_tensor_value_info("face", TensorProto.FLOAT, ["n", 3, 112, 112])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(np.array([1]), "one"), numpy_helper.from_array(np.array([1, 16]), "shape")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
