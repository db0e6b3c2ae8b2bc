"""The interface of a face detector."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from ml.errors import WrongShape
from ml.types import Detection, Image


class Detector(ABC):
    """Finds the faces in a photo. Deterministic and safe to use from several threads.

    Convention:
        image: (H, W, 3) uint8 RGB, upright, at least 1x1
        returns: faces, largest first, ties from left to right; boxes in pixels, which may extend beyond the photo
    """

    needs_file: ClassVar[bool] = False
    """Whether the operator must provide a model file, which the option `path` names."""

    @abstractmethod
    def _detect(self, image: Image) -> list[Detection]: ...

    def detect(self, image: Image) -> list[Detection]:
        """Find all faces in an (H, W, 3) photo; an empty list if there are none. Raises WrongShape."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            raise WrongShape("image", "(H, W, 3) uint8 RGB", f"{image.shape} {image.dtype}")
        return sorted(self._detect(image), key=lambda d: (-d.box.area, d.box.x, d.box.y))


def centre_face(faces: list[Detection], image: Image) -> Detection | None:
    """Return the face nearest to the centre of an (H, W, 3) photo, None if there is none. LFW is labelled by it."""
    height, width = image.shape[:2]

    def distance(face: Detection) -> float:
        box = face.box
        return float(np.hypot(box.x + (box.width - width) / 2, box.y + (box.height - height) / 2))

    return min(faces, key=distance, default=None)
