"""The descriptor's own distance: what there is before anything was learned."""

from dataclasses import dataclass

from ml.embedders.base import Maps
from ml.metric_learning.unlearned import Unlearned
from ml.types import Rows


@dataclass
class L2(Unlearned):
    """The identity map, compared by squared Euclidean distance."""

    def _embed(self, rows: Rows, task: str) -> Rows:
        return rows

    def maps(self, rows: Rows, task: str = "identity") -> Maps:
        return Maps.one(rows)
