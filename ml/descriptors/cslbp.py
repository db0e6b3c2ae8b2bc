"""Centre-symmetric local binary patterns: opposite neighbours of each pixel are compared."""

from dataclasses import dataclass

import cv2
import numpy as np

from ml.descriptors.common.cell_histograms import MARGIN_HELP, MAX_MARGIN_CELLS, Celled, Codes, ring
from ml.errors import WrongShape
from ml.options import option
from ml.types import Crops, Rows

COMPARISONS = 4
MAX_RADIUS_PIXELS = 4


@dataclass(frozen=True)
class Cslbp(Celled):
    """CS-LBP histograms of square cells: 15 x 8 x 16 = 1,920 numbers with cells of 10 pixels.

    code = sum_i 2^i [n_i - n_(i+4) > threshold], i = 0..3, of the 8 neighbours n on a circle, clockwise from the
    right: 16 codes. Cells and their normalisation (L1 norm, then square root) are those of `lbp`. Adding a constant to
    the picture does not change a bit of the result, as long as no pixel saturates.

    margin=1 is the window of the LBP of paper 000. Neighbours are the nearest pixels, where the paper interpolates.
    Source: Heikkilä, Pietikäinen, Schmid, Pattern Recognition 42 (2009), equation 2, with their radius 2, 8 neighbours
    and threshold 0.01.
    """

    margin: int = option(1, MARGIN_HELP, low=0, high=MAX_MARGIN_CELLS, unit="cells")
    radius: int = option(2, "radius of the circle of neighbours", low=1, high=MAX_RADIUS_PIXELS, unit="pixels")
    threshold: float = option(
        0.01,
        "smallest difference of two opposite neighbours that sets a bit, as a share of the range of grey values",
        low=0,
        high=1,
    )

    def __post_init__(self) -> None:
        if not 1 <= self.radius <= MAX_RADIUS_PIXELS:
            raise WrongShape("radius", f"1 to {MAX_RADIUS_PIXELS} pixels", self.radius)
        if not 0 <= self.threshold <= 1:
            raise WrongShape("threshold", "0 to 1", self.threshold)
        super().__post_init__()

    @property
    def bins(self) -> int:
        return int(2**COMPARISONS)

    @property
    def _border(self) -> int:
        return self.radius

    def _codes(self, picture: Crops) -> Codes:
        pixels, width = picture.ravel(), picture.shape[1]
        reach, min_difference = self.radius * (width + 1), int(self.threshold * 255)
        codes = np.zeros_like(pixels)
        inner = codes[reach:-reach]
        for dy, dx in reversed(ring(self.radius, 2 * COMPARISONS)[:COMPARISONS]):
            ahead = dy * width + dx
            one, other = (pixels[reach + by : reach + by + inner.size] for by in (ahead, -ahead))
            inner += inner
            inner |= cv2.subtract(one, other).ravel() > min_difference  # a difference below 0 is 0 here
        return codes

    def _normed(self, histograms: Rows) -> Rows:
        return np.sqrt(histograms)
