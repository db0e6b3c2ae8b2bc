"""Convert a residual network of dlib to an ONNX graph that takes raw pixels."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.descriptors.common.dlib_weights import (
    ADDITION,
    AFFINE,
    CONVOLUTION,
    FULLY_CONNECTED,
    MAX_POOL,
    MEAN_POOL,
    RELU,
    DlibLayer,
    DlibNetwork,
)
from ml.descriptors.common.onnx_writer import UINT8, Graph
from ml.errors import Corrupt

PIXEL_SCALE = 256.0
INPUT_NAME = "pictures"
RGB_CHANNELS = 3


@dataclass(frozen=True)
class _Signal:
    """A value in the graph: its name, and its shape for one picture (channels, height, width)."""

    name: str
    shape: tuple[int, int, int]


def build_model(network: DlibNetwork) -> bytes:
    """Build an ONNX model that maps (n, height, width, 3) uint8 RGB to (n, d) float32.

    Means, scale and affine layers are folded into the convolutions. dlib does not store which layers a sum connects, so
    this assumes its residual networks: a block ends with the ReLU after a sum, its shortcut starts at the same input,
    and a 2 x 2 mean pooling in the block belongs to the shortcut. Raises Corrupt if the layers are in another order.
    """
    builder = _Builder(network)
    layers = list(network.layers)
    if [layer.kind for layer in layers[-2:]] != [MEAN_POOL, FULLY_CONNECTED]:
        raise Corrupt("dlib weights: the network does not end with a mean and a fully connected layer")
    for at, layer in enumerate(layers[:-2]):
        builder.add(layer, layers[at + 1])
    return builder.finish(layers[-1])


class _Builder:
    def __init__(self, network: DlibNetwork) -> None:
        height, width = network.size
        self.network = network
        self.graph = Graph()
        pixels = self.graph.node("Cast", [INPUT_NAME], to=1)
        planes = self.graph.node("Transpose", [pixels], perm=(0, 3, 1, 2))
        self.signal = _Signal(planes, (RGB_CHANNELS, height, width))
        self.shortcut: _Signal | None = None
        self.summed = False

    def add(self, layer: DlibLayer, following: DlibLayer) -> None:
        """Add the next layer. An affine layer is skipped, because it was folded into the convolution before it."""
        if layer.kind == CONVOLUTION:
            self._convolve(layer, following)
        elif layer.kind == RELU:
            self.signal = _Signal(self.graph.node("Relu", [self.signal.name]), self.signal.shape)
            if self.summed:
                self.shortcut, self.summed = self.signal, False
        elif layer.kind == MAX_POOL:
            self.shortcut = self.signal = self._pool("MaxPool", self.signal, layer)
        elif layer.kind == MEAN_POOL:
            self.shortcut = self._pool("AveragePool", self._start(), layer)
        elif layer.kind == ADDITION:
            self._add_shortcut()
        elif layer.kind != AFFINE:
            raise Corrupt(f"dlib weights: unexpected layer {layer.kind!r} within the network")

    def finish(self, last: DlibLayer) -> bytes:
        """Add the last layers, a mean over the picture and a matrix, and return the model's bytes."""
        assert last.weights is not None
        width, out = last.weights.shape
        if self.signal.shape[0] != width:
            raise Corrupt("dlib weights: the last layer expects another number of channels")
        mean = self.graph.node("GlobalAveragePool", [self.signal.name])
        row = self.graph.node("Flatten", [mean], axis=1)
        output = self.graph.node("MatMul", [row, self.graph.constant(last.weights)])
        height, wide = self.network.size
        return self.graph.model(INPUT_NAME, UINT8, ("n", height, wide, RGB_CHANNELS), output, ("n", out))

    def _convolve(self, layer: DlibLayer, affine: DlibLayer) -> None:
        filters, bias = self._fold(layer, affine)
        if filters.shape[1] != self.signal.shape[0]:
            raise Corrupt("dlib weights: a convolution expects another number of channels")
        inputs = [self.signal.name, self.graph.constant(filters), self.graph.constant(bias)]
        (high, wide), (top, left) = layer.window, layer.padding
        name = self.graph.node(
            "Conv", inputs, kernel_shape=(high, wide), strides=layer.stride, pads=(top, left, top, left)
        )
        self.signal = _Signal(name, (len(filters), *_size(self.signal, layer)))

    def _fold(self, layer: DlibLayer, affine: DlibLayer) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return filters and bias equal to a convolution followed by its affine layer; the first one acts on pixels."""
        if affine.kind != AFFINE or affine.weights is None or affine.bias is None:
            raise Corrupt("dlib weights: a convolution without its affine layer")
        assert layer.weights is not None
        assert layer.bias is not None
        gain = affine.weights.astype(np.float64)
        filters, bias = layer.weights.astype(np.float64), layer.bias.astype(np.float64)
        if len(gain) != len(filters):
            raise Corrupt("dlib weights: an affine layer of another number of channels")
        if self.shortcut is None:  # the first one
            filters = filters / PIXEL_SCALE
            bias = bias - filters.sum((2, 3)) @ np.array(self.network.means)
        folded = filters * gain[:, None, None, None]
        return folded.astype(np.float32), (bias * gain + affine.bias).astype(np.float32)

    def _pool(self, operation: str, source: _Signal, layer: DlibLayer) -> _Signal:
        (top, left) = layer.padding
        name = self.graph.node(
            operation, [source.name], kernel_shape=layer.window, strides=layer.stride, pads=(top, left, top, left)
        )
        return _Signal(name, (source.shape[0], *_size(source, layer)))

    def _add_shortcut(self) -> None:
        """Add block and shortcut, both padded with zeros at the end of each axis to the larger of their sizes."""
        channels, height, width = np.maximum(self.signal.shape, self._start().shape).tolist()
        shape = (channels, height, width)
        sides = [self._padded(side, shape) for side in (self.signal, self._start())]
        self.signal, self.summed = _Signal(self.graph.node("Add", sides), shape), True

    def _padded(self, signal: _Signal, shape: tuple[int, int, int]) -> str:
        if signal.shape == shape:
            return signal.name
        ends = [to - size for to, size in zip(shape, signal.shape, strict=True)]
        return self.graph.node("Pad", [signal.name, self.graph.constant(np.array([0, 0, 0, 0, 0, *ends], np.int64))])

    def _start(self) -> _Signal:
        if self.shortcut is None:
            raise Corrupt("dlib weights: a block before the first pooling")
        return self.shortcut


def _size(signal: _Signal, layer: DlibLayer) -> tuple[int, int]:
    """Return height and width after a sliding window; an incomplete last step is dropped."""
    high, wide = (
        (size + 2 * pad - window) // step + 1
        for size, window, step, pad in zip(signal.shape[1:], layer.window, layer.stride, layer.padding, strict=True)
    )
    return high, wide
