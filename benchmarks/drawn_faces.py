"""Named faces that are drawn as embeddings, without photos."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.fault_planting import EnrolledFace
from ml.calibration import Calibration
from ml.distances import EUCLIDEAN
from ml.quality import QualityThresholds
from tests.rows import make_model, people

DIM, SPREAD = 32, 0.35
QUALITY = {"sharpness": 60.0, "contrast": 45.0, "eye_distance": 45.0}
"""Medians; the values of a good photo are spread by half of them."""
FACTORS = (0.05, 0.6)
"""By which a degraded photo has less of one of the qualities."""


class DrawnFaces:
    """`count` people with 1 to `photos` faces each. seed: of the people"""

    def __init__(self, count: int = 400, photos: int = 6, seed: int = 0) -> None:
        self._draw = np.random.default_rng(seed)
        rows, names = people(count, photos, DIM, seed, SPREAD)
        kept = self._draw.integers(1, photos + 1, count).repeat(photos) > np.tile(np.arange(photos), count)
        self._rows = rows[kept]
        self.names: Sequence[str] = [name for name, is_kept in zip(names, kept, strict=True) if is_kept]
        self.faces: Sequence[EnrolledFace] = [EnrolledFace(row, self._draw_quality()) for row in self._rows]
        self.model = replace(make_model("drawn", DIM), calibrations={"identity": self._calibrate()})

    def degrade(self, position: int, draw: np.random.Generator) -> EnrolledFace | None:
        row, quality = self.faces[position]
        name = draw.choice(list(QUALITY))
        worse = quality | {name: quality[name] * draw.uniform(*FACTORS)}
        if worse[name] < getattr(QualityThresholds(), name):
            return None
        return EnrolledFace((row + SPREAD * draw.standard_normal(DIM)).astype(np.float32), worse)

    def _draw_quality(self) -> dict[str, float]:
        return {name: value * float(self._draw.uniform(0.5, 1.5)) for name, value in QUALITY.items()}

    def _calibrate(self) -> Calibration:
        distances, names = EUCLIDEAN.distances(self._rows, self._rows), np.array(self.names)
        same, upper = names[:, None] == names, np.triu(np.ones(distances.shape, np.bool_), 1)
        return Calibration.fit(distances[same & upper], distances[~same & upper])
