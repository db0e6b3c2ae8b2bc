"""Exhaustive search: every distance is computed."""

from typing import Self

import numpy as np

from ml.distances import EUCLIDEAN, Distance
from ml.indexes.base import IndexOptions
from ml.indexes.common.cells import MAX_FLAT_FACES
from ml.indexes.common.inverted_lists import InvertedListIndex, empty_lists


class FlatIndex(InvertedListIndex):
    """The exact index for small collections. It has one list, and m has no effect."""

    def __init__(self, dim: int, metric: Distance = EUCLIDEAN) -> None:
        super().__init__(dim, metric)
        self._lists = empty_lists(np.zeros((1, dim), np.float32), metric)

    @classmethod
    def suits(cls, cells: int, metric: Distance) -> bool:
        """See `Index.suits`."""
        return cells == 1 and metric.faiss_metric is not None

    @classmethod
    def create(cls, dim: int, metric: Distance, options: IndexOptions) -> Self:
        """Create an empty index; it has no options."""
        return cls(dim, metric)

    @property
    def default_m(self) -> int:
        return 1

    def needs_rebuild(self) -> bool:
        """Whether the collection has grown large enough for cells."""
        return len(self) > MAX_FLAT_FACES
