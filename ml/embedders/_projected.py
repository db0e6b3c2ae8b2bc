"""What one linear map leaves to its embedder: z = L x - offset, of unit length where that is asked for."""

import numpy as np

from ml.embedders._pairs import norms, project
from ml.embedders.base import Embedder, Maps
from ml.types import Rows


class Projected(Embedder):
    """learned: projection (d, D) and offset (d,). Those who inherit say by default whether `unit` is on."""

    unit: bool

    @property
    def width(self) -> int | None:
        return self.learned["projection"].shape[1] if self.learned else None

    def _embed(self, rows: Rows, task: str) -> Rows:
        z: Rows = project(rows, self.learned["projection"], self.learned["offset"])
        return z / norms(z)[:, None] if self.unit else z

    def maps(self, rows: Rows, task: str = "identity") -> Maps | None:
        projection, offset = self.learned["projection"], self.learned["offset"]
        scale = np.float32(1) / norms(project(rows, projection, offset)) if self.unit else None
        return Maps.one(rows, projection, offset, scale)
