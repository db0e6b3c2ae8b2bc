"""Inspect an ONNX file for what its manifest must state, so that the descriptor `onnx` can run it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from ml.descriptors.common.manifest import CnnManifest, Colour, DescriptorManifest, Layout, OnnxManifest
from ml.errors import Corrupt, Unavailable, WrongShape

__all__ = [
    "CnnManifest",
    "Colour",
    "DescriptorManifest",
    "Layout",
    "OnnxManifest",
    "OnnxSignature",
    "inspect_onnx",
]

DEFAULT_SIZE_PIXELS = (112, 112)
MIN_DIM, MAX_DIM = 2, 4096
FLOAT_TYPE = "tensor(float)"
CHANNELS = 3
AXES: dict[Layout, tuple[int, int, int]] = {"nchw": (1, 2, 3), "nhwc": (3, 1, 2)}
"""Positions of channels, height and width in the shape of the input."""


@dataclass(frozen=True)
class OnnxSignature:
    """The input and the outputs of a recogniser in an ONNX file.

    batch: pictures in one run; None: any number
    layout: order of the input's axes; size: its (height, width) in pixels
    size_is_fixed: whether the file states height and width
    outputs: name -> numbers per face (2 to 4,096) of each output that can be an embedding, in the file's order
    """

    batch: int | None
    layout: Layout
    size: tuple[int, int]
    size_is_fixed: bool
    outputs: dict[str, int]


def inspect_onnx(path: Path, *, layout: Layout | None = None, size: tuple[int, int] | None = None) -> OnnxSignature:
    """Read the shapes in an ONNX file, and run it once on a grey picture to determine those that the file leaves open.

    layout, size: given by the caller; needed only if the file leaves them open
    Raises Unavailable if there is no such file, Corrupt if it is not an ONNX model, and WrongShape if the network does
    not map one colour picture to a row of numbers, or if `layout` or `size` contradicts the file. The message says what
    to do.
    """
    session = _open_session(path)
    shape = _read_input_shape(session, path.name)
    layouts = [layout] if layout else _list_layouts(shape, path.name)
    failures: list[str] = []
    for candidate in layouts:
        pixels, fixed = _read_size(shape, candidate, size, path.name)
        batch = shape[0] if isinstance(shape[0], int) else None
        try:
            outputs = _probe_outputs(session, candidate, pixels, batch)
        except _RunFailed as failure:
            failures.append(f"{candidate}, {pixels[0]} x {pixels[1]} pixels: {failure}")
            continue
        return OnnxSignature(batch, candidate, pixels, fixed, _keep_embeddings(outputs, path.name))
    raise WrongShape(
        f"the input of {path.name}",
        "one that runs; where it was exported with open sizes, state --size and --layout, and export it either for any "
        "number of pictures or with a batch of 1 fixed",
        f"{shape}, which failed ({'; '.join(failures)})",
    )


class _RunFailed(Exception):
    """ONNX Runtime could not run the network on a picture of this shape."""


def _open_session(path: Path) -> Any:
    if not path.is_file():
        raise Unavailable(f"no file at {path}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise Corrupt(f"{path.name} is not an ONNX model that ONNX Runtime can load: {error}") from error


def _read_input_shape(session: Any, name: str) -> list[Any]:
    inputs = session.get_inputs()
    if len(inputs) != 1:
        names = ", ".join(i.name for i in inputs)
        raise WrongShape(f"the inputs of {name}", "one picture", f"{len(inputs)} ({names}): it is not a recogniser")
    if inputs[0].type != FLOAT_TYPE or len(inputs[0].shape) != 4:
        actual = f"{inputs[0].type} of shape {inputs[0].shape}"
        raise WrongShape(f"the input of {name}", "float32 of four axes: pictures, channels, height, width", actual)
    return list(inputs[0].shape)


def _list_layouts(shape: Sequence[Any], name: str) -> list[Layout]:
    """List the layouts that the input's shape allows, the more common one first."""
    layouts = [layout for layout, axes in AXES.items() if _allows(shape[axes[0]], CHANNELS)]
    certain = [layout for layout in layouts if shape[AXES[layout][0]] == CHANNELS]
    if not layouts:
        raise WrongShape(f"the input of {name}", "a picture of 3 channels (RGB or BGR)", list(shape))
    return certain or layouts


def _read_size(
    shape: Sequence[Any], layout: Layout, stated: tuple[int, int] | None, name: str
) -> tuple[tuple[int, int], bool]:
    """Return (height, width), and whether the file states both."""
    axes = [shape[axis] for axis in AXES[layout][1:]]
    if not _allows(shape[AXES[layout][0]], CHANNELS):
        raise WrongShape(f"the input of {name}", f"of 3 channels in the layout {layout}", list(shape))
    if stated and not all(_allows(axis, side) for axis, side in zip(axes, stated, strict=True)):
        raise WrongShape(
            f"the size of {name}", f"{axes[0]} x {axes[1]}, as the file says", f"{stated[0]} x {stated[1]}"
        )
    height, width = (
        axis if isinstance(axis, int) else side for axis, side in zip(axes, stated or DEFAULT_SIZE_PIXELS, strict=True)
    )
    if not 0 < height <= MAX_DIM or not 0 < width <= MAX_DIM:
        raise WrongShape(f"the size of {name}", f"1 to {MAX_DIM} pixels a side", f"{height} x {width}")
    return (height, width), all(isinstance(axis, int) for axis in axes)


def _allows(axis: Any, number: int) -> bool:
    """Whether an axis of the file, which is a number or open, can have this size."""
    return not isinstance(axis, int) or axis == number


def _probe_outputs(session: Any, layout: Layout, size: tuple[int, int], batch: int | None) -> dict[str, float]:
    """Run the network and return name -> numbers per picture of each float output. Raises _RunFailed."""
    count = batch or 2  # a network that accepts any number of pictures must accept two
    picture = (CHANNELS, *size) if layout == "nchw" else (*size, CHANNELS)
    grey = np.full((count, *picture), 0.1, np.float32)
    named = [o.name for o in session.get_outputs() if o.type == FLOAT_TYPE]
    try:
        arrays = session.run(named, {session.get_inputs()[0].name: grey}) if named else []
    except Exception as error:  # no common base class, as above
        raise _RunFailed(str(error).split("\n")[0][:300]) from error
    return {name: array.size / count for name, array in zip(named, arrays, strict=True)}


def _keep_embeddings(outputs: dict[str, float], name: str) -> dict[str, int]:
    kept = {
        n: int(numbers) for n, numbers in outputs.items() if numbers == int(numbers) and MIN_DIM <= numbers <= MAX_DIM
    }
    if not kept:
        actual = ", ".join(f"{n}: {numbers:g}" for n, numbers in outputs.items()) or "no float32 output"
        raise WrongShape(f"the output of {name}", f"{MIN_DIM} to {MAX_DIM:,} numbers a picture", actual)
    return kept
