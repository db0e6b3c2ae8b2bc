"""Read the weights of a network that was serialised by dlib.

Source: dlib 19.24, `dlib/serialize.h`, `dlib/dnn/layers.h`, `dlib/cuda/tensor.h` (Boost licence).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.errors import Corrupt

Weights = NDArray[np.float32]

TENSOR_VERSION = 2
SIGN_BIT = 0x80
SIZE_MASK = 0x0F
MAX_INTEGER_BYTES = 8
FLAGS_PER_LAYER, TENSORS_PER_LAYER = 3, 3
ADDITION, RELU, MAX_POOL, MEAN_POOL = "add_prev_", "relu_", "max_pool_2", "avg_pool_2"
CONVOLUTION, AFFINE, FULLY_CONNECTED = "con_4", "affine_", "fc_2"


class DlibReader:
    """Reads dlib's portable encoding from start to end. Every method raises Corrupt if the bytes do not match."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def read_integer(self) -> int:
        """Read an integer: a byte with size (low four bits) and sign (0x80), then that many bytes, little-endian."""
        head = self._take(1)[0]
        size = head & SIZE_MASK
        if not 0 < size <= MAX_INTEGER_BYTES:
            raise Corrupt(f"dlib weights: no integer at byte {self._at - 1}")
        value = int.from_bytes(self._take(size), "little")
        return -value if head & SIGN_BIT else value

    def read_integers(self, count: int) -> tuple[int, ...]:
        """Read `count` integers."""
        return tuple(self.read_integer() for _ in range(count))

    def read_float(self) -> float:
        """Read a number: mantissa m, then exponent e, for m * 2^e."""
        mantissa, exponent = self.read_integers(2)
        if not -1100 < exponent < 1000:
            raise Corrupt(f"dlib weights: no number at byte {self._at}")
        return float(mantissa) * 2.0**exponent

    def read_flag(self) -> bool:
        """Read a flag: ASCII 0 or 1."""
        flag = self._take(1)
        if flag not in (b"0", b"1"):
            raise Corrupt(f"dlib weights: no flag at byte {self._at - 1}")
        return flag == b"1"

    def read_text(self) -> str:
        """Read a string that is preceded by its length."""
        size = self.read_integer()
        if not 0 <= size < 256:
            raise Corrupt(f"dlib weights: no text at byte {self._at}")
        return self._take(size).decode("latin-1")

    def read_tensor(self) -> Weights:
        """Read a tensor: (n, k, rows, columns) float32, a view of the file."""
        version, *shape = self.read_integers(5)
        if version != TENSOR_VERSION or min(shape) < 0:
            raise Corrupt(f"dlib weights: no tensor at byte {self._at}")
        values = np.frombuffer(self._take(4 * int(np.prod(shape))), "<f4")
        return values.reshape(shape).astype(np.float32, copy=False)

    def skip_to(self, mark: bytes) -> None:
        """Move to the next occurrence of these bytes."""
        start = self._data.find(mark, self._at)
        if start < 0:
            raise Corrupt("dlib weights: the description of the input is missing")
        self._at = start

    def _take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) != count:
            raise Corrupt("dlib weights: the file ends too early")
        self._at += count
        return part


@dataclass(frozen=True, eq=False)
class DlibLayer:
    """One stored layer.

    weights: (out, in, height, width) of a convolution, (in, out) of a fully connected layer, or the gain (channels,) of
        an affine layer; bias: (out,) or (channels,)
    window, stride, padding: (vertical, horizontal) pixels; a window of 0 covers the whole picture
    """

    kind: str
    weights: Weights | None = None
    bias: Weights | None = None
    window: tuple[int, int] = (0, 0)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class DlibNetwork:
    """A stored network.

    means: of red, green and blue; subtracted from pixels (0 to 255), which are then divided by 256
    size: (height, width) of the input; layers: in order from input to output
    """

    means: tuple[float, float, float]
    size: tuple[int, int]
    layers: tuple[DlibLayer, ...]


INPUT_TYPE_NAME = "input_rgb_image_sized"


def read_network(data: bytes) -> DlibNetwork:
    """Read a metric network (`loss_metric`) that takes RGB pictures of fixed size. Raises Corrupt."""
    reader = DlibReader(data)
    if reader.read_integer() != 1 or reader.read_text() != "loss_metric_2":
        raise Corrupt("dlib weights: this is not a network trained with loss_metric")
    reader.skip_to(b"\x01" + bytes([len(INPUT_TYPE_NAME)]) + INPUT_TYPE_NAME.encode())
    reader.read_text()
    red, green, blue = (reader.read_float() for _ in range(3))
    height, width = reader.read_integers(2)
    layers: list[DlibLayer] = []
    while not reader.at_end and (not layers or layers[-1].kind != FULLY_CONNECTED):
        layers.append(_read_layer(reader))
        for _ in range(FLAGS_PER_LAYER):
            reader.read_flag()
        for _ in range(TENSORS_PER_LAYER):
            reader.read_tensor()
        if len(layers) == 1:
            reader.read_integer()
    return DlibNetwork((red, green, blue), (height, width), tuple(layers))


def _read_layer(reader: DlibReader) -> DlibLayer:
    name = reader.read_text()
    if name == CONVOLUTION:
        return _read_convolution(reader)
    if name == AFFINE:
        values = reader.read_tensor().ravel()
        _skip_aliases(reader)
        reader.read_integer()
        return DlibLayer(AFFINE, values[: len(values) // 2], values[len(values) // 2 :])
    if name == FULLY_CONNECTED:
        return _read_fully_connected(reader)
    if name in (MAX_POOL, MEAN_POOL):
        high, wide, down, across, top, left = reader.read_integers(6)
        return DlibLayer(name, window=(high, wide), stride=(down, across), padding=(top, left))
    kind = next((known for known in (RELU, ADDITION) if name.startswith(known)), None)
    if kind is None:
        raise Corrupt(f"dlib weights: unknown layer {name!r}")
    return DlibLayer(kind)


def _read_convolution(reader: DlibReader) -> DlibLayer:
    values = reader.read_tensor().ravel()
    out, high, wide, down, across, top, left = reader.read_integers(7)
    _skip_aliases(reader)
    for _ in range(4):
        reader.read_float()
    if out <= 0 or high <= 0 or wide <= 0 or (len(values) - out) % (out * high * wide):
        raise Corrupt("dlib weights: a convolution whose sizes do not agree")
    filters = values[:-out].reshape(out, -1, high, wide)
    return DlibLayer(CONVOLUTION, filters, values[-out:], (high, wide), (down, across), (top, left))


def _read_fully_connected(reader: DlibReader) -> DlibLayer:
    out, width = reader.read_integers(2)
    values = reader.read_tensor().ravel()
    _skip_aliases(reader)
    reader.read_integer()
    for _ in range(4):
        reader.read_float()
    if out <= 0 or len(values) != width * out:
        raise Corrupt("dlib weights: a fully connected layer whose sizes do not agree")
    return DlibLayer(FULLY_CONNECTED, values.reshape(width, out))


def _skip_aliases(reader: DlibReader) -> None:
    """Skip two views of the parameters, which repeat their shapes."""
    reader.read_integers(2 * 5)
