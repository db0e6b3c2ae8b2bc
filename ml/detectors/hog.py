"""The default face detector, which needs no download."""

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
from ml.geometry import grey, rescale
from ml.types import Box, Detection, Image


@dataclass(frozen=True)
class Hog(Detector):
    """dlib's frontal face detector: linear classifiers over HOG, five views (Dalal, Triggs 2005; King 2015).

    It detects faces of 80 pixels or more, so small photos are enlarged and large ones reduced first. If it finds no
    face, it tries once more with a border around the photo and a lower threshold, because a face that fills its photo
    lacks the surroundings that the classifier expects.

    min_short_side, max_long_side: pixels; the photo is scaled until its sides are within these limits
    max_zoom: the largest factor by which a photo is enlarged
    border: width of the border of the second attempt, as a fraction of the shorter side
    threshold, retry_threshold: smallest classifier score (the confidence of a detection) in the first and the second
        attempt; dlib's default is 0
    """

    min_short_side: int = 240
    max_long_side: int = 1280
    border: float = 0.25
    threshold: float = 0.0
    retry_threshold: float = -0.3
    max_zoom: float = 6.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "_idle", deque())

    def _detect(self, image: Image) -> list[Detection]:
        photo = grey(image)
        return self._run(photo, 0, self.threshold) or self._run(
            photo, round(self.border * min(photo.shape)), self.retry_threshold
        )

    def _run(self, photo: NDArray[np.uint8], border: int, threshold: float) -> list[Detection]:
        if border:
            photo = np.pad(photo, border, mode="edge")
        scale = min(
            max(1.0, self.min_short_side / min(photo.shape)), self.max_zoom, self.max_long_side / max(photo.shape)
        )
        if scale != 1:
            how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
            photo = rescale(photo, scale, how)
        with self._borrow_detector() as hog:
            boxes, scores, _ = hog.run(photo, 0, threshold)
        return [Detection(_to_photo(box, scale, border), score) for box, score in zip(boxes, scores, strict=True)]

    @contextmanager
    def _borrow_detector(self) -> Iterator[Any]:
        """Lend out a detector of its own to each thread: `run` releases the GIL and modifies its object."""
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
    """Load dlib's detector, at the first photo: this takes a third of a second, and copying it a millisecond."""
    return dlib.get_frontal_face_detector()


def _to_photo(box: "dlib.rectangle", scale: float, border: int) -> Box:
    """Convert a box from pixels of the scaled picture to pixels of the photo."""
    x, y = box.left() / scale - border, box.top() / scale - border
    return Box(x, y, box.width() / scale, box.height() / scale)
