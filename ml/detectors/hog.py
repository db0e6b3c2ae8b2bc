"""The default detector: needs no download."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import cv2
import dlib
import numpy as np
from numpy.typing import NDArray

from ml.detectors.base import Detector
from ml.geometry import grey
from ml.types import Box, Detection, Image


@dataclass(frozen=True)
class Hog(Detector):
    """dlib's frontal face detector: linear classifiers over HOG, five views (Dalal, Triggs 2005; King 2015).

    It sees faces of 80 pixels and more, so a small photo is enlarged, a large one reduced, and a photo in which it
    sees no face is looked at once more, less strictly and with a border, since a face that fills its photo has no
    surroundings.

    least, most: pixels; the photo's shorter side is brought up to `least`, its longer side down to `most`
    zoom: at most so many times is a photo enlarged
    border: of the second look, as a fraction of the shorter side
    threshold, second: of the classifier's score, which is the confidence, at either look; 0 is dlib's own choice
    """

    least: int = 240
    most: int = 1280
    border: float = 0.25
    threshold: float = 0.0
    second: float = -0.3
    zoom: float = 6.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "_idle", deque())

    def _detect(self, image: Image) -> list[Detection]:
        photo = grey(image)
        return self._look(photo, 0, self.threshold) or self._look(
            photo, round(self.border * min(photo.shape)), self.second
        )

    def _look(self, photo: NDArray[np.uint8], border: int, threshold: float) -> list[Detection]:
        if border:
            photo = np.pad(photo, border, mode="edge")
        scale = min(max(1.0, self.least / min(photo.shape)), self.zoom, self.most / max(photo.shape))
        if scale != 1:
            how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
            photo = np.asarray(cv2.resize(photo, None, fx=scale, fy=scale, interpolation=how), np.uint8)
        with self._one() as hog:
            boxes, scores, _ = hog.run(photo, 0, threshold)
        return [Detection(_back(box, scale, border), score) for box, score in zip(boxes, scores, strict=True)]

    @contextmanager
    def _one(self) -> Iterator[Any]:
        """A detector for one thread: `run` lets other threads in, and writes to its object."""
        idle: deque[Any] = self._idle  # type: ignore[attr-defined]
        try:
            hog = idle.pop()
        except IndexError:
            hog = deepcopy(_load_detector())
        try:
            yield hog
        finally:
            idle.append(hog)


@cache
def _load_detector() -> Any:
    """dlib's detector, unpacked at the first photo: that takes a third of a second, and a copy of it a millisecond."""
    return dlib.get_frontal_face_detector()


def _back(box: "dlib.rectangle", scale: float, border: int) -> Box:
    """From the picture that was looked at to the photo."""
    x, y = box.left() / scale - border, box.top() / scale - border
    return Box(x, y, box.width() / scale, box.height() / scale)
