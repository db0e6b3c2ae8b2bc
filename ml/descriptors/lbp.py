"""Local binary patterns, number for number as VLFeat's `vl_lbp` computes them."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ml.descriptors.base import CROP_SHAPES, Cells, Descriptor
from ml.errors import WrongShape
from ml.types import CropKind, Crops, Rows

HEIGHT, WIDTH = CROP_SHAPES["grey"]
BINS = 58
NEIGHBOURS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))
"""(dy, dx) of the bits 0 to 7 of a pattern: E, SE, S, SW, W, NW, N, NE."""


def _bins() -> NDArray[np.uint8]:
    """The bin of each of the 256 patterns: i * 7 + j - 1 for j ones from bit i on (cyclic, j = 1..7);
    56 for none and all; 57 for the rest."""
    table = np.full(256, 57, np.uint8)
    table[[0x00, 0xFF]] = 56
    for i in range(8):
        for j in range(1, 8):
            ones = ((1 << j) - 1) << i
            table[(ones | ones >> 8) & 0xFF] = i * 7 + j - 1
    return table


BIN_OF = _bins()


def _shares(pixels: int, cell: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each pixel of an axis the two cells it is shared by and its weight in each: (2, pixels) twice.

    The weight is 0 for a border pixel and for a cell that is not there.
    """
    at = (np.arange(pixels) + 0.5) / cell - 0.5
    first = np.floor(at).astype(np.int64)
    cells, weights = np.stack([first, first + 1]), np.stack([first + 1 - at, at - first])
    weights[(cells < 0) | (cells >= pixels // cell)] = 0
    weights[:, [0, -1]] = 0
    return cells.clip(0, pixels // cell - 1), weights


@lru_cache(maxsize=4)
def _pooling(cell: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Where the four shares of each pixel go, for bin 0, and how much each counts: (4, pixels) twice.

    What a cell collects over all bins does not depend on the picture, so the L1 norm is divided out here.
    """
    (rows, by_row), (columns, by_column) = _shares(HEIGHT, cell), _shares(WIDTH, cell)
    cells = rows[:, None, :, None] * (WIDTH // cell) + columns[None, :, None, :]
    weights = by_row[:, None, :, None] * by_column[None, :, None, :]
    mass = np.bincount(cells.ravel(), weights.ravel())
    weights /= mass[cells]
    return (cells * BINS).reshape(4, -1), weights.reshape(4, -1)


def _patterns(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The pattern at each pixel of a raster written row after row. The picture's border holds nonsense."""
    edge = WIDTH + 1
    centre = pixels[edge:-edge]
    found = np.zeros_like(pixels)
    inner, brighter = found[edge:-edge], np.empty(centre.shape, np.bool_)
    for dy, dx in reversed(NEIGHBOURS):
        start = edge + dy * WIDTH + dx
        np.greater(pixels[start : start + centre.size], centre, out=brighter)
        inner += inner  # a shift by one bit; numpy's own << is six times slower on bytes
        inner |= brighter.view(np.uint8)
    return found


@dataclass(frozen=True)
class Lbp(Descriptor):
    """Uniform LBP histograms of square cells: 17 x 10 x 58 = 9,860 numbers with cells of 10 pixels.

    3x3 neighbourhoods; a bit is 1 where the neighbour is strictly brighter than the centre; border pixels are
    skipped; each pixel is shared bilinearly by the cells whose centres surround it; each cell's histogram is
    divided by its L1 norm and rooted, so that its L2 norm is 1 (a cell of one grey has all of it in bin 56).
    The bin is the slowest axis of a row, then the cell's row, then its column.
    a * picture + c with a > 0 gives the same numbers bit for bit.

    cell: pixels, 2 to 100. Source: Ojala et al., PAMI 2002, as VLFeat 0.9.21 lays it out.
    """

    cell: int = 10
    crop: ClassVar[CropKind] = "grey"

    def __post_init__(self) -> None:
        if not 2 <= self.cell <= WIDTH:
            raise WrongShape("cell", f"2 to {WIDTH} pixels", self.cell)

    @property
    def dim(self) -> int:
        return (HEIGHT // self.cell) * (WIDTH // self.cell) * BINS

    @property
    def cells(self) -> Cells:
        rows, columns = HEIGHT // self.cell, WIDTH // self.cell
        return Cells(rows, columns, self.cell, np.tile(np.arange(rows * columns), BINS))

    def _describe(self, crops: Crops) -> Rows:
        first, weights = _pooling(self.cell)
        rows = np.empty((len(crops), BINS, self.dim // BINS), np.float32)
        where = np.empty_like(first)
        for row, crop in zip(rows, np.ascontiguousarray(crops), strict=True):
            np.add(first, BIN_OF.take(_patterns(crop.ravel())), out=where)
            histograms = np.bincount(where.ravel(), weights.ravel(), self.dim).astype(np.float32)
            row[:] = np.sqrt(histograms).reshape(-1, BINS).T
        return rows.reshape(len(crops), self.dim)
