"""Rebuild a residual network of dlib as an ONNX graph that takes raw pixels."""

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
INPUT = "pictures"
RGB = 3


@dataclass(frozen=True)
class _Signal:
    """A value of the graph: its name and, of one picture, its shape (channels, height, width)."""

    name: str
    shape: tuple[int, int, int]


def build_model(network: DlibNetwork) -> bytes:
    """An ONNX model from (n, height, width, 3) uint8 RGB to (n, d) float32.

    Means, scale and affine layers are folded into the convolutions. dlib does not store which layers a sum joins: a
    block ends with the rectifier after a sum, its shortcut starts at its input, and the mean over 2 x 2 within it
    belongs to the shortcut. Raises Corrupt where the layers are in another order.
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
        pixels = self.graph.node("Cast", [INPUT], to=1)
        planes = self.graph.node("Transpose", [pixels], perm=(0, 3, 1, 2))
        self.signal = _Signal(planes, (RGB, height, width))
        self.shortcut: _Signal | None = None
        self.summed = False

    def add(self, layer: DlibLayer, following: DlibLayer) -> None:
        """The next layer; an affine one was folded into the convolution before it."""
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
            raise Corrupt(f"dlib weights: a layer of kind {layer.kind!r} within the network")

    def finish(self, last: DlibLayer) -> bytes:
        """The mean over the picture, then a matrix."""
        assert last.weights is not None
        width, out = last.weights.shape
        if self.signal.shape[0] != width:
            raise Corrupt("dlib weights: the last layer takes another number of channels")
        mean = self.graph.node("GlobalAveragePool", [self.signal.name])
        row = self.graph.node("Flatten", [mean], axis=1)
        output = self.graph.node("MatMul", [row, self.graph.constant(last.weights)])
        height, wide = self.network.size
        return self.graph.model(INPUT, UINT8, ("n", height, wide, RGB), output, ("n", out))

    def _convolve(self, layer: DlibLayer, affine: DlibLayer) -> None:
        filters, bias = self._fold(layer, affine)
        if filters.shape[1] != self.signal.shape[0]:
            raise Corrupt("dlib weights: a convolution takes another number of channels")
        inputs = [self.signal.name, self.graph.constant(filters), self.graph.constant(bias)]
        (high, wide), (top, left) = layer.window, layer.padding
        name = self.graph.node(
            "Conv", inputs, kernel_shape=(high, wide), strides=layer.stride, pads=(top, left, top, left)
        )
        self.signal = _Signal(name, (len(filters), *_size(self.signal, layer)))

    def _fold(self, layer: DlibLayer, affine: DlibLayer) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Filters and bias that do what the convolution and the affine layer after it do; of the first, on pixels."""
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
        """Both sides are filled with zeros at the end of each axis, to the larger of the two."""
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
    """Height and width after a window has gone over it; what does not fill a whole step is left out."""
    high, wide = (
        (size + 2 * pad - window) // step + 1
        for size, window, step, pad in zip(signal.shape[1:], layer.window, layer.stride, layer.padding, strict=True)
    )
    return high, wide
