"""Local binary patterns, equal to those of VLFeat's `vl_lbp`."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ml.descriptors.common.cell_histograms import Celled, Codes
from ml.errors import WrongShape
from ml.options import option
from ml.types import Crops, Rows

UNIFORM_BINS = 58
NEIGHBOURS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))
"""(dy, dx) of the bits 0 to 7 of a pattern: E, SE, S, SW, W, NW, N, NE."""


def _bins() -> Codes:
    """Return the bin of each of the 256 patterns, (256,).

    It is i * 7 + j - 1 for j ones from bit i on (cyclic, j = 1..7), 56 for no or all ones, and 57 for the rest.
    """
    table = np.full(256, 57, np.uint8)
    table[[0x00, 0xFF]] = 56
    for i in range(8):
        for j in range(1, 8):
            ones = ((1 << j) - 1) << i
            table[(ones | ones >> 8) & 0xFF] = i * 7 + j - 1
    return table


def _separate_all_ones(table: Codes) -> Codes:
    """Return the table with bin 56 for no ones, 57 for all ones and 58 for the rest, (256,)."""
    separate = table.copy()
    separate[table == 57] = 58
    separate[0xFF] = 57
    return separate


BIN_OF_PATTERN = _bins()
BIN_TABLES = {UNIFORM_BINS: BIN_OF_PATTERN, UNIFORM_BINS + 1: _separate_all_ones(BIN_OF_PATTERN)}


def _patterns(pixels: Crops, width: int) -> Codes:
    """Compute the pattern at each pixel of a raster in row-major order, (pixels,). It is undefined at the border."""
    edge = width + 1
    centre = pixels[edge:-edge]
    patterns = np.zeros_like(pixels)
    inner, brighter = patterns[edge:-edge], np.empty(centre.shape, np.bool_)
    for dy, dx in reversed(NEIGHBOURS):
        start = edge + dy * width + dx
        np.greater(pixels[start : start + centre.size], centre, out=brighter)
        inner += inner  # a shift by one bit; numpy's own << is six times slower on bytes
        inner |= brighter.view(np.uint8)
    return patterns


@dataclass(frozen=True)
class Lbp(Celled):
    """Uniform LBP histograms of square cells: 17 x 10 x 58 = 9,860 numbers with cells of 10 pixels.

    A bit is 1 where a pixel of the 3 x 3 neighbourhood is strictly brighter than the centre. Border pixels are
    skipped. Each pixel is shared bilinearly by the cells whose centres surround it. Each cell's histogram is divided
    by its L1 norm, and then the square root is taken, so that its L2 norm is 1 (a uniform cell falls into bin 56).
    The bin is the slowest axis of a row, then the cell's row, then its column. An affine change of the grey values,
    a * picture + c with a > 0, does not change a bit of the result.

    margin=1, patterns=59 is the layout of paper 000: the central 150 x 80 pixels, 15 x 8 x 59 = 7,080 numbers.
    Source: Ojala et al., PAMI 2002, in the layout of VLFeat 0.9.21.
    """

    patterns: Literal[58, 59] = option(
        58, 'bins per cell; with 59, "all neighbours brighter" and "no neighbour brighter" have separate bins'
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patterns not in BIN_TABLES:
            raise WrongShape("patterns", " or ".join(map(str, BIN_TABLES)), self.patterns)

    @property
    def bins(self) -> int:
        return self.patterns

    @property
    def _border(self) -> int:
        return 1

    def _codes(self, picture: Crops) -> Codes:
        return BIN_TABLES[self.patterns].take(_patterns(picture.ravel(), picture.shape[1]))

    def _normed(self, histograms: Rows) -> Rows:
        return np.sqrt(histograms)
