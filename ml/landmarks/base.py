"""What every landmarker promises."""

from abc import ABC, abstractmethod

import numpy as np

from ml.errors import NotFinite
from ml.types import Detection, Image, Points

MIRRORED = [1, 0, 2, 4, 3]
"""The order of the five points in the mirrored photo."""


class Landmarker(ABC):
    """Finds the five points of a face that a detector saw. Deterministic; may be used from several threads.

    Convention:
        image: (H, W, 3) uint8 RGB, upright; detection: a face in it
        returns: (5, 2) float32, see `Points`, in pixels of the photo; None where it sees no face there
    """

    @abstractmethod
    def _locate(self, image: Image, detection: Detection) -> Points | None: ...

    def locate(self, image: Image, detection: Detection) -> Points | None:
        """The five points of this face. Raises NotFinite."""
        points = self._locate(image, detection)
        if points is not None and not np.isfinite(points).all():
            raise NotFinite("a landmark")
        return points
