"""What one linear map leaves to its embedder: z = L x - offset, of unit length where that is asked for.

Without torch, which takes two seconds to load: whoever only embeds by WPCA need not wait for it.
"""

from typing import ClassVar

import numpy as np

from ml.embedders.base import Embedder, Maps
from ml.types import Rows


class Projected(Embedder):
    """learned: projection (d, D) and offset (d,). Those who inherit say by default whether `unit` is on.

    linear: whether the projection acts on the row itself, not on its direction
    """

    unit: bool
    linear: ClassVar[bool] = True

    @property
    def width(self) -> int | None:
        return self.learned["projection"].shape[1] if self.learned else None

    def _embed(self, rows: Rows, task: str) -> Rows:
        z = project(rows, self.learned["projection"], self.learned["offset"])
        return z / norms(z)[:, None] if self.unit else z

    def maps(self, rows: Rows, task: str = "identity") -> Maps | None:
        projection, offset = self.learned["projection"], self.learned["offset"]
        scale = np.float32(1) / norms(project(rows, projection, offset)) if self.unit else None
        return Maps.one(rows, projection, offset, scale)


def project(rows: Rows, projection: Rows, offset: Rows) -> Rows:
    """x -> L x - offset. rows: (N, D), projection: (d, D), offset: (d,). Returns (N, d)."""
    z: Rows = rows @ projection.T
    z -= offset
    return z


def norms(z: Rows) -> Rows:
    """(N, d) -> (N,), none of them 0."""
    found: Rows = np.maximum(np.linalg.norm(z, axis=1), np.finfo(np.float32).tiny).astype(np.float32)
    return found
