"""YuNet, a small CNN that finds faces and landmarks. Its model file must be downloaded."""

from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import ClassVar

import cv2
import numpy as np

from ml.detectors.base import Detector
from ml.errors import Unavailable
from ml.geometry import rescale
from ml.types import Box, Detection, Image

MIN_SIDE_PIXELS = 64
"""Smaller photos are padded: OpenCV's layer returns wrong results if a feature map has a single cell."""


@dataclass(frozen=True)
class Yunet(Detector):
    """YuNet (Wu, Peng, Yu 2023) as run by OpenCV's FaceDetectorYN: faces with five landmarks each.

    path: the file `face_detection_yunet_2023mar.onnx`
    max_side: pixels; larger photos are reduced until their longer side has this length
    threshold: smallest confidence, 0..1; nms: overlap (0..1) above which two boxes are taken for the same face
    Raises Unavailable if the file is missing or cannot be loaded.
    """

    needs_file: ClassVar[bool] = True
    path: Path | None = None
    max_side: int = 640
    threshold: float = 0.6
    nms: float = 0.3

    def __post_init__(self) -> None:
        if self.path is None or not Path(self.path).is_file():
            raise Unavailable(
                f"the YuNet model file ({self.path}) is missing; `likeness detectors pull yunet` downloads it"
            )
        try:
            made = cv2.FaceDetectorYN.create(str(self.path), "", (32, 32), self.threshold, self.nms)
        except cv2.error as error:
            raise Unavailable(f"the YuNet model file {self.path} cannot be loaded; download it again") from error
        object.__setattr__(self, "_net", made)
        object.__setattr__(self, "_lock", Lock())

    def _detect(self, image: Image) -> list[Detection]:
        scale = min(1.0, self.max_side / max(image.shape))
        bgr = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2BGR), np.uint8)
        if scale < 1:
            bgr = rescale(bgr, scale, cv2.INTER_AREA)
        below, beside = (max(0, MIN_SIDE_PIXELS - side) for side in bgr.shape[:2])
        bgr = np.pad(bgr, ((0, below), (0, beside), (0, 0)), mode="edge")
        with self._lock:  # type: ignore[attr-defined]
            self._net.setInputSize((bgr.shape[1], bgr.shape[0]))  # type: ignore[attr-defined]
            _, faces = self._net.detect(bgr)  # type: ignore[attr-defined]
        return [_face(row, scale) for row in (() if faces is None else faces)]


def _face(row: np.ndarray[tuple[int], np.dtype[np.float32]], scale: float) -> Detection:
    """Convert a row of FaceDetectorYN: x, y, width, height, five points, score."""
    x, y, width, height = (float(v) / scale for v in row[:4])
    points = np.ascontiguousarray(row[4:14].reshape(5, 2)) / np.float32(scale)
    return Detection(Box(x, y, width, height), float(row[14]), points)
