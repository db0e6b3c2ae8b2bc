"""The descriptor's own distance: the baseline before anything is learned."""

from dataclasses import dataclass

from ml.embedders.base import Maps
from ml.metric_learning.fixed_map import FixedMap
from ml.types import Rows


@dataclass
class L2(FixedMap):
    """The identity map, compared by squared Euclidean distance."""

    def _embed(self, rows: Rows, task: str) -> Rows:
        return rows

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return Maps.single(rows)
