"""Write a small ONNX graph without the `onnx` package, by encoding the protobuf messages field by field.

Source: `onnx/onnx.proto` of ONNX 1.13 (IR version 8); https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IR_VERSION, OPSET = 8, 17
VARINT, BYTES = 0, 2
FLOAT, UINT8, INT64 = 1, 2, 7
"""Element types, `TensorProto.DataType`."""
INT_ATTRIBUTE, INTS_ATTRIBUTE = 2, 7
ELEMENT_TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64, np.dtype(np.uint8): UINT8}

Dimension = int | str


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3 | VARINT) + _varint(value)


def _block(number: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | BYTES) + _varint(len(raw)) + raw


@dataclass
class Graph:
    """Nodes and constants, collected in the order in which they run."""

    _nodes: list[bytes] = field(default_factory=list)
    _constants: list[bytes] = field(default_factory=list)

    def constant(self, values: NDArray[np.float32] | NDArray[np.int64]) -> str:
        """Store an array of any shape (n, ...) and return its name."""
        name = f"c{len(self._constants)}"
        dims = b"".join(_integer(1, size) for size in values.shape)
        kind = ELEMENT_TYPES[values.dtype]
        stored = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
        self._constants.append(dims + _integer(2, kind) + _block(8, name) + _block(9, stored))
        return name

    def node(self, operation: str, inputs: Sequence[str], **attributes: int | Sequence[int]) -> str:
        """Add a node and return the name of its output."""
        name = f"n{len(self._nodes)}"
        written = b"".join(_block(1, given) for given in inputs) + _block(2, name) + _block(4, operation)
        for key, value in attributes.items():
            if isinstance(value, int):
                attribute = _block(1, key) + _integer(3, value) + _integer(20, INT_ATTRIBUTE)
            else:
                attribute = _block(1, key) + b"".join(_integer(8, one) for one in value)
                attribute += _integer(20, INTS_ATTRIBUTE)
            written += _block(5, attribute)
        self._nodes.append(written)
        return name

    def model(
        self, given: str, given_type: int, given_shape: Sequence[Dimension], output: str, shape: Sequence[Dimension]
    ) -> bytes:
        """Return the bytes of the model: one input with this name, type and shape, and one float output.

        A dimension given as a text may have any size.
        """
        graph = b"".join(_block(1, node) for node in self._nodes) + _block(2, "likeness")
        graph += b"".join(_block(5, constant) for constant in self._constants)
        graph += _block(11, _value_info(given, given_type, given_shape))
        graph += _block(12, _value_info(output, FLOAT, shape))
        opset = _block(1, "") + _integer(2, OPSET)
        return _integer(1, IR_VERSION) + _block(8, opset) + _block(7, graph)


def _value_info(name: str, element: int, shape: Sequence[Dimension]) -> bytes:
    dims = (_integer(1, size) if isinstance(size, int) else _block(2, size) for size in shape)
    tensor = _integer(1, element) + _block(2, b"".join(_block(1, dim) for dim in dims))
    return _block(1, name) + _block(2, _block(1, tensor))
