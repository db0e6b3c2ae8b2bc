"""The angle between two descriptors, for those that were made for it (most CNNs)."""

from dataclasses import dataclass

import numpy as np

from ml.embedders.base import Embedder, Maps, Progress, TrainingSet
from ml.types import Rows


@dataclass
class Cosine(Embedder):
    """x / |x|, compared by squared Euclidean distance, which is then 2 - 2 cos; a row of zeros stays as it is."""

    @property
    def width(self) -> int | None:
        return None

    @property
    def needs_fit(self) -> bool:
        return False

    def _fit(self, data: TrainingSet, progress: Progress) -> None:
        pass

    def _embed(self, rows: Rows, task: str) -> Rows:
        unit: Rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return unit

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return Maps.one(self.embed(rows, task))
