"""Exhaustive search: every distance is computed."""

import numpy as np

from ml.indexes._cells import SMALL
from ml.indexes._faiss import Lists, empty_lists
from ml.metric import EUCLIDEAN, Metric


class Flat(Lists):
    """The exact index, for small collections: one list, and m means nothing."""

    def __init__(self, dim: int, metric: Metric = EUCLIDEAN) -> None:
        super().__init__(dim, metric)
        self._lists = empty_lists(np.zeros((1, dim), np.float32), metric)

    @property
    def default_m(self) -> int:
        return 1

    def settle(self) -> None:
        """There are no cells to have been found from a sample."""

    def needs_rebuild(self) -> bool:
        return len(self) > SMALL
