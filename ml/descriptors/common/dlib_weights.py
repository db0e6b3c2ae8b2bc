"""Read the weights of a network that dlib has serialised.

Source: dlib 19.24, `dlib/serialize.h`, `dlib/dnn/layers.h`, `dlib/cuda/tensor.h` (Boost licence).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.errors import Corrupt

Weights = NDArray[np.float32]

TENSOR_VERSION = 2
NEGATIVE = 0x80
SIZE_BITS = 0x0F
MAX_INTEGER_BYTES = 8
FLAGS_PER_LAYER, TENSORS_PER_LAYER = 3, 3
ADDITION, RELU, MAX_POOL, MEAN_POOL = "add_prev_", "relu_", "max_pool_2", "avg_pool_2"
CONVOLUTION, AFFINE, FULLY_CONNECTED = "con_4", "affine_", "fc_2"


class DlibReader:
    """A cursor over dlib's portable encoding. Every method raises Corrupt where the bytes are not what it reads."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def read_integer(self) -> int:
        """One byte holds the size (low four bits) and the sign (0x80); that many bytes follow, little-endian."""
        head = self._take(1)[0]
        size = head & SIZE_BITS
        if not 0 < size <= MAX_INTEGER_BYTES:
            raise Corrupt(f"dlib weights: no integer at byte {self._at - 1}")
        value = int.from_bytes(self._take(size), "little")
        return -value if head & NEGATIVE else value

    def read_integers(self, count: int) -> tuple[int, ...]:
        """Read so many integers."""
        return tuple(self.read_integer() for _ in range(count))

    def read_float(self) -> float:
        """Mantissa, then exponent: m * 2^e."""
        mantissa, exponent = self.read_integers(2)
        if not -1100 < exponent < 1000:
            raise Corrupt(f"dlib weights: no number at byte {self._at}")
        return float(mantissa) * 2.0**exponent

    def read_flag(self) -> bool:
        """ASCII 0 or 1."""
        flag = self._take(1)
        if flag not in (b"0", b"1"):
            raise Corrupt(f"dlib weights: no flag at byte {self._at - 1}")
        return flag == b"1"

    def read_text(self) -> str:
        """Read a text that its length precedes. Raises Corrupt."""
        size = self.read_integer()
        if not 0 <= size < 256:
            raise Corrupt(f"dlib weights: no text at byte {self._at}")
        return self._take(size).decode("latin-1")

    def read_tensor(self) -> Weights:
        """(n, k, rows, columns) float32, a view of the file."""
        version, *shape = self.read_integers(5)
        if version != TENSOR_VERSION or min(shape) < 0:
            raise Corrupt(f"dlib weights: no tensor at byte {self._at}")
        values = np.frombuffer(self._take(4 * int(np.prod(shape))), "<f4")
        return values.reshape(shape).astype(np.float32, copy=False)

    def skip_to(self, mark: bytes) -> None:
        """To the first place, from here on, where these bytes are."""
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
    """One layer as it is stored.

    weights: of a convolution (out, in, height, width), of a fully connected layer (in, out), of an affine one the gain
        (channels,); bias: (out,) or (channels,)
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
    """means: of red, green and blue, subtracted from pixels of 0 to 255 before they are divided by 256;
    size: (height, width) of the input; layers: from the input to the output."""

    means: tuple[float, float, float]
    size: tuple[int, int]
    layers: tuple[DlibLayer, ...]


INPUT = "input_rgb_image_sized"


def read_network(data: bytes) -> DlibNetwork:
    """A metric network (`loss_metric`) on an RGB picture of fixed size. Raises Corrupt."""
    reader = DlibReader(data)
    if reader.read_integer() != 1 or reader.read_text() != "loss_metric_2":
        raise Corrupt("dlib weights: this is not a network trained with loss_metric")
    reader.skip_to(b"\x01" + bytes([len(INPUT)]) + INPUT.encode())
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
        raise Corrupt(f"dlib weights: a layer of kind {name!r}, which is not known here")
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
    """Two views of the parameters, which repeat their shapes."""
    reader.read_integers(2 * 5)
