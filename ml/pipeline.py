"""From a photo to aligned faces: detect, find landmarks, align, assess the quality.

front_end = default_front_end()
for face in front_end.faces(images.read(data)):
    descriptor.describe(face.crops["grey"][None])
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ml.aligners.similarity import CROP_SIZES_PIXELS, TEMPLATES, Similarity
from ml.detectors.base import Detector
from ml.geometry import IDENTITY, Matrix, inverse, moved, scaled, similarity
from ml.landmarks.base import Landmarker
from ml.landmarks.regressor import Regressor
from ml.quality import QualityThresholds, assess, pose
from ml.registry import build, component
from ml.types import AlignedFace, Box, CropKind, Detection, Image, Points, Pose

REMEMBERED_SIZES = 64


@dataclass(frozen=True)
class FrontEnd:
    """Finds and aligns the faces of photos. Deterministic; several threads may share one, processes may not."""

    detector: Detector
    landmarks: Landmarker
    aligner: Similarity = field(default_factory=Similarity)
    wanted: QualityThresholds = field(default_factory=QualityThresholds)

    def warm_up(self) -> None:
        """Load the detector, so that the first photo need not wait for it: that takes a third of a second."""
        self.detector.detect(np.zeros((1, 1, 3), np.uint8))

    def faces(self, image: Image) -> list[AlignedFace]:
        """Find and align all faces of an (H, W, 3) uint8 RGB photo, largest first, whatever their quality."""
        aligned = (self.align(image, detection) for detection in self.detector.detect(image))
        return [face for face in aligned if face is not None]

    def align(self, image: Image, detection: Detection) -> AlignedFace | None:
        """Align one detected face of an (H, W, 3) photo; None if the landmarker finds no points."""
        points = self.landmarks.locate(image, detection)
        if points is None:
            return None
        crops = self.aligner.crops(image, points)
        quality = assess(crops["grey"], points, detection.confidence, self.wanted)
        return AlignedFace(detection.box, points, quality, crops)

    def aligned(self, image: Image) -> AlignedFace:
        """Treat a whole (H, W, 3) picture as one face that was aligned elsewhere.

        A picture that has exactly the size of a crop kind becomes that crop unchanged, and the other kind is cut from
        it. From any other picture, each kind is cut as the largest centred rectangle of its aspect ratio.
        """
        height, width = image.shape[:2]
        geometry = _place_face(width, height)
        crops = self.aligner.cut(image, geometry.views)
        quality = assess(crops["grey"], geometry.points, 1.0, self.wanted, geometry.pose)
        return AlignedFace(Box(0, 0, width, height), geometry.points.copy(), quality, crops)


class _Geometry(NamedTuple):
    """Where an aligned face is in a picture of some size. views: kind of crop -> picture -> crop transform"""

    views: dict[CropKind, Matrix]
    points: Points
    pose: Pose


@lru_cache(REMEMBERED_SIZES)
def _place_face(width: int, height: int) -> _Geometry:
    views = {kind: _view(kind, width, height) for kind in CROP_SIZES_PIXELS}
    points = moved(inverse(views["grey"]), TEMPLATES["grey"])
    return _Geometry(views, points, pose(points))


def _view(kind: CropKind, width: int, height: int) -> Matrix:
    """Return the picture -> crop transform for a picture that shows one aligned face."""
    for known, size in CROP_SIZES_PIXELS.items():
        if size == (width, height):
            return IDENTITY if known == kind else similarity(TEMPLATES[known], TEMPLATES[kind])
    across, down = CROP_SIZES_PIXELS[kind]
    middle, to = np.array([width - 1, height - 1]) / 2, np.array([across - 1, down - 1]) / 2
    return scaled(max(across / width, down / height), middle, to)


def default_front_end(detector: str = "hog", model_path: Path | None = None) -> FrontEnd:
    """Create the front end of a new service.

    detector: a component of `ml/detectors`; model_path: its model file, if it needs one
    Raises Unavailable, UnknownComponent.
    """
    options = {"path": model_path} if component("detectors", detector).needs_file else {}
    return FrontEnd(build("detectors", detector, **options), Regressor())
