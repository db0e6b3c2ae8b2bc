"""What every detector promises."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from ml.errors import WrongShape
from ml.types import Detection, Image


class Detector(ABC):
    """Finds faces. Deterministic; one object may be used from several threads.

    Convention:
        image: (H, W, 3) uint8 RGB, upright, at least 1x1
        returns: faces, largest first, ties from left to right; boxes in pixels of the photo, they may overhang it
    """

    needs_file: ClassVar[bool] = False
    """Whether its model is a file of the operator's, which its option `path` names."""

    @abstractmethod
    def _detect(self, image: Image) -> list[Detection]: ...

    def detect(self, image: Image) -> list[Detection]:
        """Every face that it sees; an empty list where there is none. Raises WrongShape."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            raise WrongShape("image", "(H, W, 3) uint8 RGB", f"{image.shape} {image.dtype}")
        return sorted(self._detect(image), key=lambda d: (-d.box.area, d.box.x, d.box.y))


def centre_face(faces: list[Detection], image: Image) -> Detection | None:
    """The face nearest the middle of the photo: the one that LFW's photos are named after. image: (H, W, 3)."""
    height, width = image.shape[:2]

    def distance(face: Detection) -> float:
        box = face.box
        return float(np.hypot(box.x + (box.width - width) / 2, box.y + (box.height - height) / 2))

    return min(faces, key=distance, default=None)
