"""The array shapes and small records that all of `ml` shares.

Geometry: points are (x, y) in pixels, x to the right, y down, the origin at the centre
of the top-left pixel, of the *upright* picture (after its EXIF turn). "Left" is the viewer's left.
Colour: RGB, unless a name says grey.
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
Pose = tuple[float, float, float]  # yaw, pitch and roll in degrees

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
    """A detected face; `landmarks` is None if the detector finds none."""

    box: Box
    confidence: float
    landmarks: Points | None = None


@dataclass(frozen=True)
class Quality:
    """The quality of a face, and the `reasons` not to enrol it (empty if there are none).

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
    """An aligned face, ready to be described: one crop of each kind."""

    box: Box
    landmarks: Points
    quality: Quality
    crops: dict[CropKind, Image]  # "grey": (170, 100); "colour": (112, 112, 3) RGB


@dataclass(frozen=True)
class Spec:
    """A component by name, with its options."""

    name: str
    options: dict[str, object] = field(default_factory=dict)
