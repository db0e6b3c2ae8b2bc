"""The interface of a landmarker."""

from abc import ABC, abstractmethod

import numpy as np

from ml.errors import NotFinite
from ml.types import Detection, Image, Points

MIRRORED_ORDER = [1, 0, 2, 4, 3]
"""The order of the five landmarks after mirroring the photo."""


class Landmarker(ABC):
    """Finds the five landmarks of a detected face. Deterministic and safe to use from several threads.

    Convention:
        image: (H, W, 3) uint8 RGB, upright; detection: a face in this photo
        returns: (5, 2) float32, see `Points`, in pixels of the photo; None if it finds no face there
    """

    @abstractmethod
    def _locate(self, image: Image, detection: Detection) -> Points | None: ...

    def locate(self, image: Image, detection: Detection) -> Points | None:
        """Find the (5, 2) landmarks of a face in an (H, W, 3) photo; None if there is no face. Raises NotFinite.

        A box without an extent holds no face.
        """
        if min(detection.box.width, detection.box.height) <= 0:
            return None
        points = self._locate(image, detection)
        if points is not None and not np.isfinite(points).all():
            raise NotFinite("a landmark")
        return points
