"""What the FAISS indexes share: inverted lists of rows, scanned one distance at a time.

The flat index is the same thing with one list: a scan costs what `IndexFlat` costs, and the distance of a pair comes
out bit for bit alike whatever the batch or the number of cells, which a matrix product would not promise. Rows are
held once, in FAISS; its hash table from id to place serves removal and reading back.
"""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ml.errors import WrongShape
from ml.indexes._storage import write
from ml.indexes.base import Found, Index
from ml.metric import EUCLIDEAN, Metric
from ml.types import Ids, Rows

BITMAP_LIMIT = 1 << 27
"""Ids below this are let through by a bitmap (at most 16 MiB), larger ones by a hash set."""

Scan = tuple[NDArray[np.float32], Ids]


def empty_lists(centroids: Rows, metric: Metric) -> Any:
    """A faiss.IndexIVFFlat with these cells and nothing in them."""
    cells, dim = centroids.shape
    kind = faiss.METRIC_L2 if metric.kind == "l2" else faiss.METRIC_INNER_PRODUCT
    quantizer = faiss.IndexFlat(dim, kind)
    quantizer.add(centroids)
    lists = faiss.IndexIVFFlat(quantizer, dim, cells, kind)
    lists.is_trained = True
    lists.set_direct_map_type(faiss.DirectMap.Hashtable)
    return lists


def selector(allowed: Ids) -> Any:
    """A faiss.IDSelector that lets these ids through."""
    if not len(allowed) or allowed.max() >= BITMAP_LIMIT:
        return faiss.IDSelectorBatch(allowed)
    let = np.zeros(int(allowed.max()) + 1, np.bool_)
    let[allowed] = True
    return faiss.IDSelectorBitmap(np.packbits(let, bitorder="little"))


def nearest(distances: NDArray[np.float32], ids: Ids, k: int) -> Scan:
    """The first k by (distance, id), filled up with (+inf, -1)."""
    order = np.lexsort((ids, np.where(ids < 0, np.float32(np.inf), distances)))[:, :k]
    query, found = np.arange(len(ids))[:, None], order.shape[1]
    kept, named = np.full((len(ids), k), np.inf, np.float32), np.full((len(ids), k), -1, np.int64)
    named[:, :found] = ids[query, order]
    kept[:, :found] = np.where(named[:, :found] < 0, np.float32(np.inf), distances[query, order])
    return kept, named


class Lists(Index):
    """An index over inverted lists; a subclass says where its cells come from. `_lists`: None while it has none."""

    def __init__(self, dim: int, metric: Metric = EUCLIDEAN) -> None:
        super().__init__(dim, metric)
        self._lists: Any = None
        self._sizes: NDArray[np.int64] | None = None

    @property
    def cells(self) -> int:
        return int(self._lists.nlist) if self._lists is not None else 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(p,) faces in each cell; (0,) while there are no cells."""
        if self._sizes is None:
            held = range(self.cells if self._lists is not None else 0)
            self._sizes = np.array([self._lists.invlists.list_size(cell) for cell in held], np.int64)
        return self._sizes

    def __len__(self) -> int:
        return int(self._lists.ntotal) if self._lists is not None else 0

    def ids(self) -> Ids:
        held = [np.empty(0, np.int64)]
        for cell in np.flatnonzero(self.sizes).tolist():
            held.append(faiss.rev_swig_ptr(self._lists.invlists.get_ids(cell), int(self.sizes[cell])).copy())
        return np.sort(np.concatenate(held))

    def rows(self, ids: Ids) -> Rows:
        if not len(ids):
            return np.empty((0, self.dim), np.float32)
        try:
            rows: Rows = self._lists.reconstruct_batch(ids)
        except (AttributeError, RuntimeError) as error:  # no lists yet; an id that the hash table does not know
            raise WrongShape("ids", "ids that the index holds", f"{len(ids)} of which some are not") from error
        return rows

    def save(self, path: Path) -> str:
        header = {"kind": type(self).__name__, "dim": self.dim, "metric": self.metric.to_dict(), "state": self._state()}
        return write(path, header, self._lists)

    def _state(self) -> dict[str, Any]:
        """What a subclass needs beside the lists to go on after a load: attributes by name."""
        return {}

    def _restore(self, state: dict[str, Any], lists: Any) -> None:
        vars(self).update(state, _lists=lists)

    def _add(self, ids: Ids, rows: Rows) -> None:
        self._lists.add_with_ids(rows, ids)
        self._sizes = None

    def remove(self, ids: Ids) -> None:
        if len(self) and len(ids):
            going = np.ascontiguousarray(ids, np.int64)
            self._lists.remove_ids(faiss.IDSelectorArray(len(going), faiss.swig_ptr(going)))
            self._sizes = None

    def _search(self, queries: Rows, k: int, m: int, allowed: Ids | None) -> Found:
        among = None if allowed is None else np.asarray(allowed[allowed >= 0], np.int64)
        if among is not None and len(among) * self.cells <= m * len(self):
            m = self.cells  # no more distances than m whole cells have, and none is missed
        near, cells = self._probe(queries, m)
        sel = None if among is None else selector(among)
        distances, ids = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        wanted = min(k + 1, len(self))
        while wanted and len(queries):
            distances, ids = self._scan(queries, wanted, near, cells, sel)
            cut = (ids[:, -1] >= 0) & (distances[:, min(k, wanted) - 1] == distances[:, -1])
            if wanted == len(self) or not cut.any():
                break
            wanted = min(2 * wanted, len(self))  # equals lie on both sides of the cut: see all of them
        distances, ids = nearest(distances, ids, k)
        return Found(ids, distances, self._fraction(cells, among), m)

    def _probe(self, queries: Rows, m: int) -> Scan:
        """The m nearest cells of each query: (Q, m) distances and numbers."""
        if self.cells == 1 or not len(queries):
            return np.zeros((len(queries), 1), np.float32), np.zeros((len(queries), 1), np.int64)
        near, cells = self._lists.quantizer.search(queries, m)
        return near, cells

    def _scan(self, queries: Rows, wanted: int, near: NDArray[np.float32], cells: Ids, sel: Any) -> Scan:
        """The `wanted` nearest in these cells, in no particular order among equals; id -1 where there are fewer."""
        shape = (len(queries), wanted)
        distances, ids = np.empty(shape, np.float32), np.empty(shape, np.int64)
        given = [faiss.swig_ptr(array) for array in (queries, cells, near, distances, ids)]
        params = faiss.SearchParametersIVF(nprobe=cells.shape[1], sel=sel)
        self._lists.search_preassigned_c(
            len(queries), given[0], wanted, given[1], given[2], given[3], given[4], False, params
        )
        return (distances if self.metric.kind == "l2" else -distances), ids

    def _fraction(self, cells: Ids, among: Ids | None) -> NDArray[np.float64]:
        """Centroids and rows compared, over rows held; with a filter the most that it can have been."""
        scanned = self.sizes[cells].sum(axis=1) if len(self) else np.zeros(len(cells), np.int64)
        if among is not None:
            scanned = np.minimum(scanned, len(among))
        centroids = self.cells if self.cells > 1 else 0
        fraction: NDArray[np.float64] = (centroids + scanned) / max(1, len(self))
        return fraction
