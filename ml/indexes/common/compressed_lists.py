"""Inverted lists of compressed rows, for the first stage of a search: FAISS's product quantiser with 4-bit codes.

Its tables of 16 values are looked up in registers, 32 faces at a time ("fast scan", André, Kermarrec and Le Scouarnec
2015), which is several times faster than computing distances.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

import faiss
import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.indexes.common.cells import fit_centroids
from ml.indexes.common.centroids import CellLists, CellRows, FittedFaces, clear_empty_cells, renew_centroids
from ml.indexes.common.row_store import RowStore
from ml.indexes.common.snapshot_file import Writer
from ml.types import Ids, Rows

CODE_BITS = 4
MIN_TRAINING_ROWS = 1000
"""Each code has 16 values, which k-means places; FAISS wants 39 rows for each."""


class CompressedLists:
    """Codes of rows in cells, under the slots of a `RowStore`. They find candidates, and never tell a distance.

    bits: of the code for each number of a row, 1, 2 or 4
    """

    def __init__(self, lists: Any, dim: int) -> None:
        self._lists = lists
        self._padding = int(lists.d) - dim
        self._dim = dim
        self._sizes: NDArray[np.int64] | None = None

    @classmethod
    def train(cls, rows: Rows, cells: int, bits: int, metric: Distance, seed: int) -> "CompressedLists":
        """Place so many cells, and fit the codes, by k-means on (N, dim) rows: `MIN_TRAINING_ROWS` or more."""
        dim, group = rows.shape[1], CODE_BITS // bits
        width = -(-dim // group) * group
        rows = _pad(rows, width - dim)
        kind = faiss.METRIC_L2 if metric.faiss_metric == "L2" else faiss.METRIC_INNER_PRODUCT
        quantizer = faiss.IndexFlat(width, kind)
        quantizer.add(fit_centroids(rows, cells, metric, seed) if cells > 1 else rows.mean(0, keepdims=True))
        lists = faiss.IndexIVFPQFastScan(quantizer, width, cells, width // group, CODE_BITS, kind)
        lists.by_residual = False  # with residuals, each cell probed needs tables of its own
        lists.pq.cp.seed = seed
        lists.train(rows)
        return cls(lists, dim)

    @classmethod
    def read(cls, body: BinaryIO, dim: int) -> "CompressedLists":
        """Read what `write` wrote. Raises RuntimeError."""
        return cls(faiss.read_index(faiss.PyCallbackIOReader(body.read)), dim)

    def write(self, write: Writer) -> None:
        """Write FAISS's own bytes."""
        faiss.write_index(self._lists, faiss.PyCallbackIOWriter(write))

    @property
    def cells(self) -> int:
        """The number of cells, p."""
        return int(self._lists.nlist)

    @property
    def bytes_per_row(self) -> int:
        """Bytes of a code."""
        return int(self._lists.code_size)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(p,) faces in each cell."""
        if self._sizes is None:
            invlists = self._lists.invlists
            self._sizes = np.array([invlists.list_size(cell) for cell in range(self.cells)], np.int64)
        return self._sizes

    def count_per_cell(self, rows: Rows) -> NDArray[np.int64]:
        """Count which cells (N, dim) rows fall into: (p,)."""
        nearest = self._lists.quantizer.search(_pad(rows, self._padding), 1)[1][:, 0]
        return np.bincount(nearest, minlength=self.cells)

    def add(self, slots: Ids, rows: Rows) -> None:
        """Add (n, dim) rows under (n,) slots that are not present."""
        self._lists.add_with_ids(_pad(rows, self._padding), slots)
        self._sizes = None

    def remove(self, slots: Ids) -> Ids:
        """Remove (n,) slots, and return the cells in which they were. It reads all ids, 10 ms for a million faces.

        `renew` is to follow, unless no slot is left.
        """
        before = self.sizes
        self._lists.remove_ids(faiss.IDSelectorBatch(slots))
        self._sizes = None
        cells = np.flatnonzero(self.sizes < before)
        for block, used in self._last_blocks(cells):
            self._clear(block, used)
        return cells

    def clear_empty_cells(self, metric: Distance) -> None:
        """See `centroids.clear_empty_cells`."""
        clear_empty_cells(self._lists.quantizer, self.sizes, metric)

    def renew(self, cells: Ids, store: RowStore, fitted: FittedFaces, metric: Distance) -> None:
        """Renew the centroids of (n,) cells: see `renew_centroids`. store: has the rows under the slots"""

        def read_cell(cell: int) -> CellRows:
            slots = self._list_slots(cell)
            return slots, store.find_ids(slots), _pad(store.read_slots(slots), self._padding)

        def move_rows(slots: Ids, rows: Rows) -> None:
            self.remove(slots)
            self.add(slots, rows[:, : self._dim])

        renew_centroids(cells, CellLists(self._lists.quantizer, metric, read_cell, move_rows), fitted)

    def search(self, queries: Rows, count: int, m: int, selector: Any) -> Ids:
        """Find roughly the nearest slots of each of (Q, dim) queries in m cells: (Q, count), -1 where there are fewer.

        selector: a faiss.IDSelector of slots; None: all
        """
        padded = _pad(queries, self._padding)
        distances, slots = np.empty((len(padded), count), np.float32), np.empty((len(padded), count), np.int64)
        pointers = [faiss.swig_ptr(array) for array in (padded, distances, slots)]
        params = faiss.SearchParametersIVF(nprobe=m, sel=selector)
        # not `search`, which takes no parameters once another library has loaded faiss.contrib.torch_utils
        self._lists.search_c(len(padded), pointers[0], count, pointers[1], pointers[2], params)
        return slots

    def count_scanned(self, queries: Rows, m: int) -> NDArray[np.int64]:
        """Count the codes in the m cells nearest to each of (Q, dim) queries: (Q,)."""
        if m >= self.cells:
            return np.full(len(queries), self.sizes.sum())
        cells = self._lists.quantizer.search(_pad(queries, self._padding), m)[1]
        scanned: NDArray[np.int64] = self.sizes[cells].sum(axis=1)
        return scanned

    def _list_slots(self, cell: int) -> Ids:
        """The slots of the rows in a cell: (n,)."""
        if not self.sizes[cell]:
            return np.empty(0, np.int64)
        slots: Ids = faiss.rev_swig_ptr(self._lists.invlists.get_ids(cell), int(self.sizes[cell])).copy()
        return slots

    def _last_blocks(self, cells: Ids) -> Iterator[tuple[NDArray[np.uint8], int]]:
        """Yield the last block of codes of each of these cells that is partly used, and the number of its codes."""
        invlists = faiss.downcast_InvertedLists(self._lists.invlists)
        per_block, size = invlists.packer.nvec, invlists.packer.block_size
        for cell in cells.tolist():
            blocks, used = divmod(int(self.sizes[cell]), per_block)
            if used:
                codes = faiss.rev_swig_ptr(invlists.get_codes(cell), (blocks + 1) * size)
                yield codes[blocks * size :].reshape(1, size), used

    def _clear(self, block: NDArray[np.uint8], used: int) -> None:
        """Zero the unused codes of a block: FAISS 1.15 leaves removed codes there, and adds others by a bitwise or."""
        packer = faiss.downcast_InvertedLists(self._lists.invlists).packer
        zero = np.zeros(packer.code_size, np.uint8)
        for position in range(used, packer.nvec):
            packer.pack_1(zero, position, block)


def _pad(rows: Rows, columns: int) -> Rows:
    """Append columns of zeros, which change neither distances nor inner products."""
    return np.ascontiguousarray(np.pad(rows, ((0, 0), (0, columns))) if columns else rows, np.float32)
