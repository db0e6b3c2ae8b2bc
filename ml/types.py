"""Each shape, said once.

Convention for geometry, everywhere: points are (x, y) in pixels, x to the right, y down, the origin at the centre
of the top-left pixel, of the *upright* picture (after its EXIF turn). "Left" is the viewer's left.
Convention for colour: RGB, unless a name says grey. Only `ml/images.py` may say BGR.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]  # (H, W, 3) RGB, upright
Crops = NDArray[np.uint8]  # (N, H, W) grey or (N, H, W, 3) RGB, of one crop kind
Rows = NDArray[np.float32]  # (N, d), finite
Ids = NDArray[np.int64]  # (N,)
Points = NDArray[np.float32]  # (5, 2): left eye, right eye, nose, left mouth corner, right mouth corner

CropKind = Literal["grey", "colour"]


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels: (x, y) its top-left corner."""

    x: float
    y: float
    width: float
    height: float

    @property
    def area(self) -> float:
        return self.width * self.height


@dataclass(frozen=True, eq=False)
class Detection:
    """A face as a detector saw it; `landmarks` only from a detector that gives them."""

    box: Box
    confidence: float
    landmarks: Points | None = None


@dataclass(frozen=True)
class Quality:
    """What `ml.quality` measured, and `reasons` why the face should not be enrolled (empty: it may be).

    sharpness: variance of the Laplacian of the grey crop; brightness, contrast: mean and SD of it in 0..255;
    yaw, pitch, roll: degrees, estimated from the five points; eye_distance: pixels in the photo.
    """

    sharpness: float
    brightness: float
    contrast: float
    yaw: float
    pitch: float
    roll: float
    eye_distance: float
    confidence: float
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class AlignedFace:
    """A face ready to be described: one crop of every kind."""

    box: Box
    landmarks: Points
    quality: Quality
    crops: dict[CropKind, Image]  # "grey": (170, 100); "colour": (112, 112, 3) RGB


@dataclass(frozen=True)
class Spec:
    """A component by name, with its options: how a manifest, a request or a test names one."""

    name: str
    options: dict[str, object] = field(default_factory=dict)
