"""Local binary patterns, number for number as VLFeat's `vl_lbp` computes them."""

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
    """The bin of each of the 256 patterns: i * 7 + j - 1 for j ones from bit i on (cyclic, j = 1..7);
    56 for none and all; 57 for the rest."""
    table = np.full(256, 57, np.uint8)
    table[[0x00, 0xFF]] = 56
    for i in range(8):
        for j in range(1, 8):
            ones = ((1 << j) - 1) << i
            table[(ones | ones >> 8) & 0xFF] = i * 7 + j - 1
    return table


def _with_all_apart(table: Codes) -> Codes:
    """The same with 56 for none, 57 for all and 58 for the rest."""
    separate = table.copy()
    separate[table == 57] = 58
    separate[0xFF] = 57
    return separate


BIN_OF_PATTERN = _bins()
BIN_TABLES = {UNIFORM_BINS: BIN_OF_PATTERN, UNIFORM_BINS + 1: _with_all_apart(BIN_OF_PATTERN)}


def _patterns(pixels: Crops, width: int) -> Codes:
    """The pattern at each pixel of a raster written row after row. The picture's border holds nonsense."""
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

    3x3 neighbourhoods; a bit is 1 where the neighbour is strictly brighter than the centre; border pixels are
    skipped; each pixel is shared bilinearly by the cells whose centres surround it; each cell's histogram is
    divided by its L1 norm and rooted, so that its L2 norm is 1 (a cell of one grey has all of it in bin 56).
    The bin is the slowest axis of a row, then the cell's row, then its column.
    a * picture + c with a > 0 gives the same numbers bit for bit.

    margin=1, patterns=59 is paper 000's layout: the 150 x 80 pixels in the middle, 15 x 8 x 59 = 7,080 numbers.
    Source: Ojala et al., PAMI 2002, as VLFeat 0.9.21 lays it out.
    """

    patterns: Literal[58, 59] = option(
        58, 'bins of a cell; 59 counts "all neighbours brighter" and "no neighbour brighter" in two bins'
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
