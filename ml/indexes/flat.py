"""Exhaustive search: every distance is computed."""

from typing import Self

import faiss
import numpy as np

from ml.distances import EUCLIDEAN, Distance
from ml.indexes.base import IndexOptions, Neighbours
from ml.indexes.common.cells import MAX_FLAT_FACES
from ml.indexes.common.inverted_lists import InvertedListIndex, empty_lists, first_k, view_list
from ml.types import Rows


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

    def search_many(self, queries: Rows, k: int) -> Neighbours:
        """Find the k nearest faces of each of (Q, dim) queries by matrix products. See `Index.search_many`.

        A scan by query reads all rows from memory for each of them: four times as long for rows of 9,860 numbers.
        """
        queries, _ = self._prepare_search(queries, k, None)
        if not len(self) or not len(queries):
            return self._search(queries, k, 1, None)
        ids, rows = view_list(self._lists, 0)
        scores, positions = faiss.knn(queries, rows, min(k, len(ids)), metric=self._lists.metric_type)
        distances, nearest = first_k(self._as_distances(scores), ids[positions], k)
        return Neighbours(nearest, distances, np.ones(len(queries)), 1)

    def needs_rebuild(self) -> bool:
        """Whether the collection has grown large enough for cells."""
        return len(self) > MAX_FLAT_FACES
