"""Cut aligned crops: the five landmarks of a face are mapped to fixed positions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.geometry import Matrix, grey, similarity, warp
from ml.types import CropKind, Image, Points

CROP_SIZES_PIXELS: dict[CropKind, tuple[int, int]] = {"grey": (100, 170), "colour": (112, 112)}
"""Width and height of each kind of crop."""

TEMPLATES: dict[CropKind, NDArray[np.float32]] = {
    "grey": np.array([(28, 62), (72, 62), (50, 90), (33, 117), (67, 117)], np.float32),
    "colour": np.array(
        [(38.2946, 51.6963), (73.5318, 51.5014), (56.0252, 71.7366), (41.5493, 92.3655), (70.7299, 92.2041)],
        np.float32,
    ),
}
"""Positions of the five landmarks in each crop. `colour` is the template of InsightFace, which face CNNs expect."""


@dataclass(frozen=True)
class Similarity:
    """Align by rotation, scale and shift, fitted to the template of each crop kind by least squares.

    See docs/research/geometry.md.

    Convention:
        image: (H, W, 3) uint8 RGB; points: (5, 2), see `Points`
        returns: "grey" (170, 100) uint8 and "colour" (112, 112, 3) uint8 RGB; pixels outside the photo repeat its edge
    """

    def crops(self, image: Image, points: Points) -> dict[CropKind, Image]:
        """Cut one crop of each kind from an (H, W, 3) photo, given (5, 2) landmarks."""
        return self.cut(image, {kind: similarity(points, template) for kind, template in TEMPLATES.items()})

    def cut(self, image: Image, views: dict[CropKind, Matrix]) -> dict[CropKind, Image]:
        """Cut one crop of each kind from an (H, W, 3) photo by these (2, 3) photo -> crop transforms."""
        cut = {kind: warp(image, view, CROP_SIZES_PIXELS[kind]) for kind, view in views.items()}
        return {"grey": grey(cut["grey"]), "colour": cut["colour"]}
