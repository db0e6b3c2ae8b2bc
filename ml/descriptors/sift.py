"""SIFT at nine points of the aligned face, at three scales."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from ml.descriptors.base import CROP_SHAPES, CellLayout, Descriptor
from ml.types import CropKind, Crops, Ids, Rows

HEIGHT, WIDTH = CROP_SHAPES["grey"]
POINTS = (
    *((14, 65), (38, 65), (62, 65), (86, 65)),  # outer and inner corners of the eyes
    *((40, 95), (50, 92), (60, 95)),  # nostrils and the tip of the nose
    *((30, 114), (70, 114)),  # corners of the mouth
)
"""(x, y) on the crop, in the mean of aligned faces. docs/decisions/0006-nine-points.md gives the reasons."""
SCALES = (1, 2, 3)
BINS_PER_AXIS, DIRECTIONS = 4, 8
BIN_PIXELS = 4
"""Side of a bin, on the crop reduced by the scale."""
WINDOW_PIXELS = 5 * BIN_PIXELS
"""Side of the window that the overlapping bins cover."""
BLUR_SD_PIXELS = np.sqrt((BIN_PIXELS / 3) ** 2 - 0.25)
MAX_COMPONENT, MIN_NORM = 0.2, 1e-12
CROPS_PER_BATCH = 16
CELL_PIXELS = 10
Floats = NDArray[np.float32]


def _places(scale: int) -> NDArray[np.float64]:
    """Return the points as (x, y) on the reduced crop, (9, 2), in coordinates of pixel centres."""
    return (np.array(POINTS) + 0.5) / scale - 0.5


def _axis(at: NDArray[np.float64], pixels: int) -> tuple[Ids, NDArray[np.float64]]:
    """Return the first pixel of the window around each position on an axis, and each pixel's weight in each bin.

    The weight is triangular, with the width of a bin, times a Gaussian with an SD of two bins around the position.
    Pixels without a gradient have weight 0. Returns (n,) and (n, 4, 20).
    """
    first = np.ceil(at - WINDOW_PIXELS / 2).astype(np.int64)
    pixel = first[:, None] + np.arange(WINDOW_PIXELS)
    off = (pixel - at[:, None]) / BIN_PIXELS
    centres = np.arange(BINS_PER_AXIS) - (BINS_PER_AXIS - 1) / 2
    tents = np.maximum(0, 1 - np.abs(off[:, None] - centres[:, None]))
    seen = (pixel >= 1) & (pixel < pixels - 1)
    return first, tents * (np.exp(-(off**2) / 8) * seen)[:, None]


@lru_cache(maxsize=3)
def _windows(scale: int) -> tuple[Ids, Ids, Floats]:
    """Return the rows and columns of each point's window and one pixel around it, (9, 22) each, and the weight of each
    pixel of the window in each bin, (9, 400, 16)."""
    high, wide = -(-HEIGHT // scale), -(-WIDTH // scale)
    (left, across), (top, down) = (
        _axis(at, size) for at, size in zip(_places(scale).T, (WIDTH // scale, HEIGHT // scale), strict=True)
    )
    weights = np.einsum("pry,pcx->pyxrc", down, across).reshape(len(POINTS), WINDOW_PIXELS**2, BINS_PER_AXIS**2)
    around = np.arange(-1, WINDOW_PIXELS + 1)
    rows, columns = (top[:, None] + around).clip(0, high - 1), (left[:, None] + around).clip(0, wide - 1)
    return rows, columns, weights.astype(np.float32)


def _smaller(crops: Crops, scale: int) -> Floats:
    """Reduce crops (N, 170, 100) by `scale`, and blur them as SIFT blurs its first image."""
    high, wide = -(-HEIGHT // scale), -(-WIDTH // scale)
    full = np.pad(crops, ((0, 0), (0, high * scale - HEIGHT), (0, wide * scale - WIDTH)), "edge").astype(np.float32)
    reduced = np.empty((len(crops), high, wide), np.float32)
    for into, crop in zip(reduced, full, strict=True):
        means = cv2.resize(crop, (wide, high), interpolation=cv2.INTER_AREA) if scale > 1 else crop
        cv2.GaussianBlur(means, (0, 0), BLUR_SD_PIXELS, dst=into)
    return reduced


def _turned(patches: Floats) -> Floats:
    """Share the gradient of each pixel between the two nearest of eight directions: (n, 22, 22) -> (n, 8, 400)."""
    dx = patches[:, 1:-1, 2:] - patches[:, 1:-1, :-2]
    dy = patches[:, :-2, 1:-1] - patches[:, 2:, 1:-1]
    size = np.sqrt(dx * dx + dy * dy).ravel()
    turn = np.arctan2(dy, dx).ravel() * np.float32(DIRECTIONS / (2 * np.pi))
    low = np.floor(turn)
    share = size * (turn - low)
    into = low.astype(np.int32)
    turned = np.zeros((len(patches), DIRECTIONS, WINDOW_PIXELS**2), np.float32)
    pixel = np.arange(0, turned.size, DIRECTIONS * WINDOW_PIXELS**2)[:, None] + np.arange(WINDOW_PIXELS**2)
    for direction, part in ((into, size - share), (into + 1, share)):
        turned.reshape(-1)[pixel.ravel() + (direction & (DIRECTIONS - 1)) * WINDOW_PIXELS**2] = part
    return turned


def _unit(rows: Floats) -> Floats:
    unit_rows: Floats = rows / np.linalg.norm(rows, axis=-1, keepdims=True).clip(MIN_NORM)
    return unit_rows


@dataclass(frozen=True)
class Sift(Descriptor):
    """Upright SIFT at 9 points x 3 scales x 128 = 3,456 numbers.

    The points are the corners of the eyes, the nostrils, the tip of the nose and the corners of the mouth, at their
    positions in the mean of aligned faces (docs/decisions/0006-nine-points.md). A patch is 16, 32 or 48 pixels a side:
    4 x 4 bins of 4 pixels, with 8 directions each, counter-clockwise from the right, on the crop reduced by 1, 2 or 3.
    Gradients are central differences, shared trilinearly by bins and directions under a Gaussian with an SD of two
    bins. The 128 numbers of a patch are divided by their L2 norm, clipped at 0.2 and divided by their norm again; they
    are 0 for a uniform patch. The axes of a row are scale, point, bin row, bin column, direction. `cells` assigns a bin
    to the square of 10 x 10 pixels in which its centre lies.

    Source: Lowe, IJCV 60 (2004), section 6; nine points and three scales: Guillaumin et al., ICCV 2009.
    """

    crop: ClassVar[CropKind] = "grey"

    @property
    def dim(self) -> int:
        return len(SCALES) * len(POINTS) * BINS_PER_AXIS**2 * DIRECTIONS

    @property
    def _cells(self) -> CellLayout:
        rows, columns = HEIGHT // CELL_PIXELS, WIDTH // CELL_PIXELS
        off = BIN_PIXELS * (np.arange(BINS_PER_AXIS) - (BINS_PER_AXIS - 1) / 2)
        across, down = (
            np.array([[(at + scale * off) // CELL_PIXELS for at in axis] for scale in SCALES]).astype(np.int64)
            for axis in np.array(POINTS).T
        )
        of = down.clip(0, rows - 1)[..., None] * columns + across.clip(0, columns - 1)[..., None, :]
        return CellLayout(rows, columns, CELL_PIXELS, np.repeat(of.ravel(), DIRECTIONS))

    def _describe(self, crops: Crops) -> Rows:
        return np.concatenate(
            [self._some(crops[at : at + CROPS_PER_BATCH]) for at in range(0, len(crops), CROPS_PER_BATCH)]
        )

    def _some(self, crops: Crops) -> Rows:
        parts = []
        for scale in SCALES:
            rows, columns, weights = _windows(scale)
            patches = _smaller(crops, scale)[:, rows[:, :, None], columns[:, None, :]].swapaxes(0, 1)
            turned = _turned(patches.reshape(-1, WINDOW_PIXELS + 2, WINDOW_PIXELS + 2))
            bins = turned.reshape(len(POINTS), -1, WINDOW_PIXELS**2) @ weights
            parts.append(bins.reshape(len(POINTS), len(crops), DIRECTIONS, BINS_PER_AXIS**2))
        spread = np.stack(parts).transpose(2, 0, 1, 4, 3).reshape(len(crops), -1, BINS_PER_AXIS**2 * DIRECTIONS)
        return _unit(np.minimum(_unit(spread), MAX_COMPONENT)).reshape(len(crops), -1)
