"""The cosine of two descriptors, which suits most CNNs."""

from dataclasses import dataclass

import numpy as np

from ml.embedders.base import Maps
from ml.metric_learning.fixed_map import FixedMap
from ml.types import Rows


@dataclass
class Cosine(FixedMap):
    """x / |x|, compared by squared Euclidean distance, which is then 2 - 2 cos; a row of zeros is not changed."""

    def _embed(self, rows: Rows, task: str) -> Rows:
        unit: Rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return unit

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return Maps.single(self.embed(rows, task))
