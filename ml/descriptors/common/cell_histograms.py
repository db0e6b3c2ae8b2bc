"""Histograms of pixel codes over square cells, which the descriptors of local binary patterns share."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ml.descriptors.base import CROP_SHAPES, CellLayout, Descriptor
from ml.errors import WrongShape
from ml.options import option
from ml.types import CropKind, Crops, Ids, Rows

HEIGHT, WIDTH = CROP_SHAPES["grey"]
CELL_HELP = "side of a cell"
MARGIN_HELP = "cells left out on each side of the crop; 1 leaves out most of the background"
MAX_MARGIN_CELLS = 24
Codes = NDArray[np.uint8]


@dataclass(frozen=True)
class CellGrid:
    """Square cells over a picture. cell: side in pixels; pixels nearer to the edge than `border` have no code"""

    height: int
    width: int
    cell: int
    border: int

    @property
    def rows(self) -> int:
        return self.height // self.cell

    @property
    def columns(self) -> int:
        return self.width // self.cell

    def histograms(self, pictures: Iterable[Codes], bins: int) -> Iterator[Rows]:
        """Yield the histograms of each picture, (rows * columns, bins); the bins of a cell sum to 1.

        pictures: (height * width,) codes each
        """
        cells, weights = self._shares
        first, flat = cells * bins, weights.ravel()
        where = np.empty_like(first)
        for codes in pictures:
            np.add(first, codes, out=where)
            counts = np.bincount(where.ravel(), flat, self.rows * self.columns * bins)
            yield counts.astype(np.float32).reshape(-1, bins)

    @cached_property
    def _shares(self) -> tuple[Ids, NDArray[np.float64]]:
        """The four cells that share each pixel, and its weight in each: (4, pixels) twice.

        The sum of a cell over all bins does not depend on the picture, so the weights are divided by it here.
        """
        rows, by_row = self._axis(self.height)
        columns, by_column = self._axis(self.width)
        cells = rows[:, None, :, None] * self.columns + columns[None, :, None, :]
        weights = by_row[:, None, :, None] * by_column[None, :, None, :]
        weights /= np.bincount(cells.ravel(), weights.ravel())[cells]
        return cells.reshape(4, -1), weights.reshape(4, -1)

    def _axis(self, pixels: int) -> tuple[Ids, NDArray[np.float64]]:
        """Return the two cells that share each pixel of an axis, and its weight in each: (2, pixels) twice.

        The weight is 0 for a pixel of the border and for a cell outside the picture.
        """
        at = (np.arange(pixels) + 0.5) / self.cell - 0.5
        first = np.floor(at).astype(np.int64)
        cells, weights = np.stack([first, first + 1]), np.stack([first + 1 - at, at - first])
        weights[(cells < 0) | (cells >= pixels // self.cell)] = 0
        weights[:, : self.border] = weights[:, pixels - self.border :] = 0
        return cells.clip(0, pixels // self.cell - 1), weights


@dataclass(frozen=True)
class Celled(Descriptor):
    """A descriptor that counts the codes of pixels in each cell.

    Cells must be so large that each has a pixel with a code. Pixels in the margin have no influence.
    The bin is the slowest axis of a row, then the cell's row, then its column. Raises WrongShape.
    """

    cell: int = option(10, CELL_HELP, low=2, high=WIDTH, unit="pixels")
    margin: int = option(0, MARGIN_HELP, low=0, high=MAX_MARGIN_CELLS, unit="cells")
    crop: ClassVar[CropKind] = "grey"

    def __post_init__(self) -> None:
        min_cell = (2 * self._border + 1) // 3 + 1
        if not min_cell <= self.cell <= WIDTH:
            raise WrongShape("cell", f"{min_cell} to {WIDTH} pixels", self.cell)
        max_margin = (WIDTH // self.cell - 1) // 2
        if not 0 <= self.margin <= max_margin:
            raise WrongShape("margin", f"0 to {max_margin} cells of {self.cell} pixels", self.margin)

    @property
    @abstractmethod
    def bins(self) -> int:
        """The number of codes."""

    @property
    @abstractmethod
    def _border(self) -> int:
        """The distance in pixels from which neighbours determine a code."""

    @abstractmethod
    def _codes(self, picture: Crops) -> Codes:
        """Return the codes (height * width,) of a picture (height, width); those of the border are ignored."""

    @abstractmethod
    def _normed(self, histograms: Rows) -> Rows:
        """Normalise (cells, bins) histograms, each of which sums to 1."""

    @cached_property
    def grid(self) -> CellGrid:
        out = 2 * self.margin * self.cell
        return CellGrid(HEIGHT - out, WIDTH - out, self.cell, self._border)

    @property
    def dim(self) -> int:
        return self.grid.rows * self.grid.columns * self.bins

    @property
    def _cells(self) -> CellLayout:
        rows, columns = HEIGHT // self.cell, WIDTH // self.cell
        down, across = np.ogrid[: self.grid.rows, : self.grid.columns]
        of = (down + self.margin) * columns + across + self.margin
        return CellLayout(rows, columns, self.cell, np.tile(of.ravel(), self.bins))

    def _describe(self, crops: Crops) -> Rows:
        grid, out = self.grid, self.margin * self.cell
        cut = np.ascontiguousarray(crops[:, out : out + grid.height, out : out + grid.width])
        rows = np.empty((len(crops), self.bins, grid.rows * grid.columns), np.float32)
        for row, histograms in zip(rows, grid.histograms(map(self._codes, cut), self.bins), strict=True):
            row[:] = self._normed(histograms).T
        return rows.reshape(len(crops), self.dim)


def ring(radius: float, points: int) -> list[tuple[int, int]]:
    """Return (dy, dx) of points evenly spaced on a circle, clockwise from the right, at the nearest pixels."""
    turns = 2 * np.pi * np.arange(points) / points
    return [(round(radius * float(np.sin(t))), round(radius * float(np.cos(t)))) for t in turns]
