"""Multiple assignment (CLML, section 3.4): p cells by k-means, of which a search probes the m nearest."""

from typing import Any, Self

import numpy as np

from ml.distances import EUCLIDEAN, Distance
from ml.errors import WrongShape
from ml.indexes.base import Device, IndexOptions
from ml.indexes.common.cells import (
    MAX_REPLACED_SHARE,
    choose_fitted,
    default_cell_count,
    fit_centroids,
    has_outgrown,
    imbalance,
    move_centroids,
)
from ml.indexes.common.gpu_copy import GpuCopy, use_gpu
from ml.indexes.common.inverted_lists import InvertedListIndex, Scan, empty_lists, view_list
from ml.types import Ids, Rows

MAX_IMBALANCE_SAMPLES = 100_000


class IvfIndex(InvertedListIndex):
    """An inverted file of uncompressed rows: approximate for m < p, exhaustive for m = p.

    p: number of cells; None: `default_cell_count` of the rows it is trained on; never more than there are rows
    m, device, seed: see `IndexOptions`. The lists stay on the CPU and the GPU holds a copy, since FAISS's GPU indexes
        support neither removal nor filters.
    """

    def __init__(
        self,
        dim: int,
        metric: Distance = EUCLIDEAN,
        *,
        p: int | None = None,
        m: int | None = None,
        device: Device = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__(dim, metric)
        if p is not None and p < 1:
            raise WrongShape("p", "1 or more cells", p)
        self.p, self.m, self.seed = p, m, seed
        self.trained_on, self.trained_imbalance, self.last_fitted, self.removed_fitted = 0, 1.0, -1, 0
        self._gpu = GpuCopy() if use_gpu(device) else None

    @classmethod
    def suits(cls, cells: int, metric: Distance) -> bool:
        """See `Index.suits`."""
        return cells > 1 and metric.faiss_metric is not None

    @classmethod
    def create(cls, dim: int, metric: Distance, options: IndexOptions) -> Self:
        """Create an empty index. Raises WrongShape, Unavailable."""
        return cls(dim, metric, p=options.p, m=options.m, device=options.device, seed=options.seed)

    @property
    def default_m(self) -> int:
        return self.m or max(32, self.cells // 16)

    def train(self, rows: Rows) -> Self:
        """Place the cells by k-means on (N, dim) rows, and drop all vectors held.

        The same rows and seed give the same cells. An index that was not trained is trained on the first rows added.
        Raises WrongShape, NotFinite.
        """
        self._check(rows)
        rows = np.ascontiguousarray(rows, np.float32)
        cells = min(self.p or default_cell_count(len(rows)), len(rows))
        self._lists = empty_lists(fit_centroids(rows, cells, self.metric, self.seed), self.metric)
        self._sizes = None
        if self._gpu is not None:
            self._gpu.drop()
        sample = rows[:: len(rows) // MAX_IMBALANCE_SAMPLES + 1]
        counts = np.bincount(self._lists.quantizer.search(sample, 1)[1][:, 0], minlength=cells)
        self.trained_on, self.trained_imbalance = len(rows), imbalance(counts)
        return self

    def needs_rebuild(self) -> bool:
        """Whether there are more than twice the faces of the training, the cells are twice as unbalanced, or most of
        the faces are gone for which they were placed."""
        if self._lists is None or not len(self):
            return False
        if self.removed_fitted > MAX_REPLACED_SHARE * self.trained_on:
            return True
        return has_outgrown(self.sizes, self.trained_on, self.trained_imbalance)

    def finish_build(self) -> None:
        """Take the present size as the size the cells were made for, and give back what the lists do not need."""
        super().finish_build()
        self.trained_on, self.last_fitted, self.removed_fitted = len(self), self._find_last(), 0
        self._copy_to_gpu()

    def set_state(self, state: dict[str, Any], lists: Any) -> None:
        """Take over what a snapshot kept: see `InvertedListIndex.set_state`.

        Raises KeyError if an earlier version made it, whose centroids may lie elsewhere: it is to be built anew.
        """
        self.last_fitted = state["last_fitted"]
        super().set_state(state, lists)
        self._copy_to_gpu()

    def _copy_to_gpu(self) -> None:
        if self._gpu is not None and self._lists is not None:
            self._gpu.make(self._lists)

    def remove(self, ids: Ids) -> None:
        """Remove these (n,) ids; ids that are not present are ignored. An index that is empty then has no cells."""
        before, sizes = len(self), self.sizes
        super().remove(ids)
        removed = before - len(self)
        if not removed:
            return
        self.removed_fitted += min(removed, int(np.count_nonzero(np.asarray(ids) <= self.last_fitted)))
        if len(self):
            cells = np.flatnonzero(self.sizes < sizes)
            move_centroids(self._lists.quantizer, cells, self.sizes, self._read_cell, self.metric)
        else:
            self._lists, self._sizes = None, None
        if self._gpu is None:
            return
        if removed == len(ids) and len(self) and self.sizes[cells].all():
            self._gpu.skip(np.asarray(ids, np.int64))
        else:  # FAISS does not say which of them it held, and a cell that is empty now lies elsewhere
            self._gpu.drop()

    def _read_cell(self, cell: int) -> Rows:
        return choose_fitted(*view_list(self._lists, cell), self.last_fitted)

    def _find_last(self) -> int:
        """Return the last id, -1 if there is none."""
        return int(self.ids()[-1]) if len(self) else -1

    def _add(self, ids: Ids, rows: Rows) -> None:
        if self._lists is None:
            self.train(rows)
            self.last_fitted, self.removed_fitted = int(ids.max()), 0
        super()._add(ids, rows)
        if self._gpu is not None:
            self._gpu.add(ids, rows)

    def _scan(self, queries: Rows, wanted: int, centroid_distances: Any, cells: Ids, selector: Any) -> Scan:
        if self._gpu is not None and selector is None:
            scan = self._gpu.search(self._lists, queries, wanted, centroid_distances, cells)
            if scan is not None:
                return self._as_distances(scan[0]), scan[1]
        return super()._scan(queries, wanted, centroid_distances, cells, selector)

    def state(self) -> dict[str, Any]:
        """Return the attributes that a snapshot keeps."""
        kept = ("p", "m", "seed", "trained_on", "trained_imbalance", "last_fitted", "removed_fitted")
        return {name: getattr(self, name) for name in kept}
