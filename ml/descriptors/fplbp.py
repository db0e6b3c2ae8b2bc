"""Four-patch local binary patterns: each bit tells which of two pairs of small patches is more similar."""

from dataclasses import dataclass
from typing import Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from ml.descriptors.common.cell_histograms import MARGIN_HELP, MAX_MARGIN_CELLS, Celled, Codes, ring
from ml.errors import WrongShape
from ml.options import option
from ml.types import Crops, Rows

MAX_COMPONENT = 0.2
MAX_RADIUS_PIXELS = 16
PatchCount = Literal[4, 6, 8, 10, 12, 14, 16]
PatchSide = Literal[1, 3, 5, 7]


@dataclass(frozen=True)
class Fplbp(Celled):
    """FPLBP histograms of square cells: 15 x 8 x 16 = 1,920 numbers with cells of 10 pixels.

    code = sum_i 2^i [d(A_i, B_(i+alpha)) - d(A_(i+S/2), B_(i+alpha+S/2)) >= tau], i = 0..S/2-1, of patches A on an
    inner and B on an outer circle around the pixel, S on each, clockwise from the right. d is the sum of the squared
    differences of the pixels of two patches, 0..255. Pixels are shared by cells as in `lbp`. Each cell's histogram is
    divided by its L2 norm, clipped at 0.2 and divided by its norm again.

    margin=1 is the window of the LBP of paper 000. With tau=0.01, any difference at all sets a bit, but a uniform patch
    sets none. Patches are centred at the nearest pixel.
    Source: Wolf, Hassner, Taigman, Descriptor Based Methods in the Wild (2008),
    equation 2, with their r1 = 4, r2 = 5, S = 8, w = 3, alpha = 1, tau = 0.01.
    """

    margin: int = option(1, MARGIN_HELP, low=0, high=MAX_MARGIN_CELLS, unit="cells")
    inner: int = option(4, "radius of the inner circle", low=1, high=MAX_RADIUS_PIXELS, unit="pixels")
    outer: int = option(
        5, "radius of the outer circle, at least that of the inner one", low=1, high=MAX_RADIUS_PIXELS, unit="pixels"
    )
    patches: PatchCount = option(8, "S, number of patches on each circle", unit="patches")
    side: PatchSide = option(3, "side of a patch", unit="pixels")
    alpha: int = option(1, "steps from a patch on the inner circle to its partner on the outer one", low=0, high=15)
    tau: float = option(
        0.01, "smallest difference of two distances that sets a bit, for grey values of 0 to 255", low=0
    )

    def __post_init__(self) -> None:
        if not 1 <= self.inner <= self.outer <= MAX_RADIUS_PIXELS:
            raise WrongShape(
                "inner and outer", f"1 <= inner <= outer <= {MAX_RADIUS_PIXELS} pixels", (self.inner, self.outer)
            )
        if self.patches not in get_args(PatchCount):
            raise WrongShape("patches", "even, 4 to 16", self.patches)
        if self.side not in get_args(PatchSide):
            raise WrongShape("side", "1, 3, 5 or 7 pixels", self.side)
        super().__post_init__()

    @property
    def bins(self) -> int:
        return int(2 ** (self.patches // 2))

    @property
    def _border(self) -> int:
        return self.outer + self.side // 2

    def _codes(self, picture: Crops) -> Codes:
        height, width = picture.shape
        edge, reach, half = self._border, self.outer, self.patches // 2
        grey = picture.astype(np.float32)
        near, far = ring(self.inner, self.patches), ring(reach, self.patches)

        def compute_differences(i: int) -> NDArray[np.float32]:
            """Compute the squared difference between inner patch i and its partner at each pixel, (rows, columns)."""
            (ay, ax), (by, bx) = near[i], far[(i + self.alpha) % self.patches]
            a = grey[reach + ay : height - reach + ay, reach + ax : width - reach + ax]
            b = grey[reach + by : height - reach + by, reach + bx : width - reach + bx]
            difference: NDArray[np.float32] = a - b
            return difference * difference

        codes, rim = np.zeros_like(picture), edge - reach
        inner = codes[edge : height - edge, edge : width - edge]
        for i in reversed(range(half)):
            more = cv2.boxFilter(
                compute_differences(i) - compute_differences(i + half), -1, (self.side, self.side), normalize=False
            )
            inner += inner
            inner |= more[rim : more.shape[0] - rim, rim : more.shape[1] - rim] >= self.tau
        return codes.ravel()

    def _normed(self, histograms: Rows) -> Rows:
        cut = np.minimum(_unit(histograms), MAX_COMPONENT)
        return _unit(cut)


def _unit(rows: Rows) -> Rows:
    unit_rows: Rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit_rows
