"""Multiple assignment (CLML, section 3.4): p cells by k-means, of which a search probes the m nearest."""

from typing import Any, Self

import numpy as np

from ml.distances import EUCLIDEAN, Distance
from ml.errors import WrongShape
from ml.indexes.base import Device, IndexOptions
from ml.indexes.common.cells import (
    MAX_REPLACED_SHARE,
    default_cell_count,
    fit_centroids,
    has_outgrown,
    imbalance,
)
from ml.indexes.common.centroids import CellLists, CellRows, FittedFaces, clear_empty_cells, renew_centroids
from ml.indexes.common.gpu_copy import GpuCopy, use_gpu
from ml.indexes.common.inverted_lists import InvertedListIndex, Scan, empty_lists, view_list
from ml.types import Ids, Rows

NO_CELLS: Ids = np.empty(0, np.int64)
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
        self._fitted, self._replaced_cells = FittedFaces.of(-1, NO_CELLS), NO_CELLS
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
        self.last_fitted, self.removed_fitted = -1, 0
        self._fitted = FittedFaces.of(-1, np.zeros(cells, np.int64))
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
        """Take the present faces as those the cells were made for, and give back what the lists do not need."""
        super().finish_build()
        self.trained_on, self.removed_fitted = len(self), 0
        self._fit_to_present()
        self._copy_to_gpu()

    def _fit_to_present(self) -> None:
        """Take the present faces as those for which the cells were placed."""
        if len(self) and clear_empty_cells(self._lists.quantizer, self.sizes, self.metric) and self._gpu is not None:
            self._gpu.drop()
        self.last_fitted = int(self.ids()[-1]) if len(self) else -1
        self._fitted = FittedFaces.of(self.last_fitted, self.sizes)

    def set_state(self, state: dict[str, Any], lists: Any) -> None:
        """Take over what a snapshot kept: see `InvertedListIndex.set_state`.

        Raises KeyError if an earlier version made it, whose centroids may lie elsewhere: it is to be built anew.
        """
        self._fitted = FittedFaces.from_state(state["fitted"])
        super().set_state({name: value for name, value in state.items() if name != "fitted"}, lists)
        self._copy_to_gpu()

    def _copy_to_gpu(self) -> None:
        if self._gpu is not None and self._lists is not None:
            self._gpu.make(self._lists)

    def remove(self, ids: Ids) -> None:
        """Remove these (n,) ids; ids that are not present are ignored. An index that is empty then has no cells."""
        removed, cells = self._remove_rows(ids)
        self.removed_fitted += min(removed, int(np.count_nonzero(np.asarray(ids) <= self.last_fitted)))
        self._renew(cells)

    def _take_out(self, ids: Ids) -> None:
        """See `LocalIndex._take_out`. `_add` renews the centroids, when the cells have got back what is not changed."""
        self._replaced_cells = self._remove_rows(ids)[1]

    def _remove_rows(self, ids: Ids) -> tuple[int, Ids]:
        """Remove these (n,) ids, and return how many were present, and the cells in which they were."""
        before, sizes = len(self), self.sizes
        super().remove(ids)
        removed, cells = before - len(self), np.flatnonzero(self.sizes < sizes)
        if removed and not len(self):
            self._lists, self._sizes, self._fitted, cells = None, None, FittedFaces.of(-1, NO_CELLS), NO_CELLS
        if removed and self._gpu is not None:
            if removed == len(ids) and len(self):
                self._gpu.skip(np.asarray(ids, np.int64))
            else:  # FAISS does not say which of them it held
                self._gpu.drop()
        return removed, cells

    def _renew(self, cells: Ids) -> None:
        if len(cells) and renew_centroids(cells, self._cell_lists, self._fitted) and self._gpu is not None:
            self._gpu.drop()  # rows lie in other cells now

    @property
    def _cell_lists(self) -> CellLists:
        return CellLists(self._lists.quantizer, self.metric, self._read_cell, self._move_rows)

    def _read_cell(self, cell: int) -> CellRows:
        ids, rows = view_list(self._lists, cell)
        return ids, ids, rows

    def _move_rows(self, ids: Ids, rows: Rows) -> None:
        super().remove(ids)
        super()._add(ids, rows)

    def _add(self, ids: Ids, rows: Rows) -> None:
        if is_new := self._lists is None:
            self.train(rows)
        super()._add(ids, rows)
        if self._gpu is not None:
            self._gpu.add(ids, rows)
        if is_new:
            self._fit_to_present()
        self._renew(self._replaced_cells)
        self._replaced_cells = NO_CELLS

    def _scan(self, queries: Rows, wanted: int, centroid_distances: Any, cells: Ids, selector: Any) -> Scan:
        if self._gpu is not None and selector is None:
            scan = self._gpu.search(self._lists, queries, wanted, centroid_distances, cells)
            if scan is not None:
                return self._as_distances(scan[0]), scan[1]
        return super()._scan(queries, wanted, centroid_distances, cells, selector)

    def state(self) -> dict[str, Any]:
        """Return the attributes that a snapshot keeps."""
        kept = ("p", "m", "seed", "trained_on", "trained_imbalance", "last_fitted", "removed_fitted")
        return {name: getattr(self, name) for name in kept} | {"fitted": self._fitted.to_state()}
