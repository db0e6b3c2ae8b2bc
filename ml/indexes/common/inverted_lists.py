"""What the FAISS indexes share: inverted lists of rows, scanned one distance at a time.

The flat index is the same structure with one list. A scan then costs what `IndexFlat` costs, and the distance of a
pair is the same bit for bit whatever the batch or the number of cells, which a matrix product does not guarantee. FAISS
holds each row once; its hash table from id to position serves removal and reading back.
"""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from ml.distances import EUCLIDEAN, Distance, load_distance
from ml.errors import WrongShape
from ml.indexes.base import Device, IndexOptions, LocalIndex, Neighbours
from ml.indexes.common.shared_scans import MIN_SHARED_NUMBERS, MIN_SHARED_QUERIES, ScanPart, scan_helpers, split_scan
from ml.indexes.common.snapshot_file import Writer, write_snapshot
from ml.types import Ids, Rows

MAX_BITMAP_ID = 1 << 27
"""Ids below this are filtered by a bitmap (at most 16 MiB), larger ones by a hash set."""

Scan = tuple[NDArray[np.float32], Ids]


def empty_lists(centroids: Rows, metric: Distance) -> Any:
    """Create an empty faiss.IndexIVFFlat with these (p, d) centroids."""
    cells, dim = centroids.shape
    kind = faiss.METRIC_L2 if metric.faiss_metric == "L2" else faiss.METRIC_INNER_PRODUCT
    quantizer = faiss.IndexFlat(dim, kind)
    quantizer.add(centroids)
    lists = faiss.IndexIVFFlat(quantizer, dim, cells, kind)
    lists.is_trained = True
    lists.set_direct_map_type(faiss.DirectMap.Hashtable)
    return lists


def write_lists(lists: Any, write: Writer) -> None:
    """Write FAISS's own bytes; nothing if `lists` is None."""
    if lists is not None:
        faiss.write_index(lists, faiss.PyCallbackIOWriter(write))


def read_lists(header: dict[str, Any], body: BinaryIO) -> Any:
    """Read what `write_lists` wrote. Raises RuntimeError."""
    return faiss.read_index(faiss.PyCallbackIOReader(body.read)) if header["trained"] else None


def view_list(lists: Any, cell: int) -> tuple[Ids, Rows]:
    """The (n,) ids and (n, d) rows of one list where they lie; valid until the next change."""
    size = lists.invlists.list_size(cell)
    if not size:
        return np.empty(0, np.int64), np.empty((0, lists.d), np.float32)
    codes = faiss.rev_swig_ptr(lists.invlists.get_codes(cell), size * lists.code_size)
    return faiss.rev_swig_ptr(lists.invlists.get_ids(cell), size), codes.view(np.float32).reshape(size, -1)


def id_selector(allowed: Ids) -> Any:
    """Create a faiss.IDSelector for these (n,) ids."""
    if not len(allowed) or allowed.max() >= MAX_BITMAP_ID:
        return faiss.IDSelectorBatch(allowed)
    bits = np.zeros(int(allowed.max()) + 1, np.bool_)
    bits[allowed] = True
    return faiss.IDSelectorBitmap(np.packbits(bits, bitorder="little"))


@lru_cache(16)
def probe_parameters(m: int) -> Any:
    """Create faiss.SearchParametersIVF for m cells without a filter; searches only read them."""
    return faiss.SearchParametersIVF(nprobe=m)


def scan_lists(
    lists: Any, queries: Rows, wanted: int, centroid_distances: NDArray[np.float32], cells: Ids, selector: Any = None
) -> Scan:
    """Scan (Q, m) cells for the `wanted` nearest of (Q, d) queries: FAISS's scores and ids, each (Q, wanted).

    Equal scores come in any order; the id is -1 where there are fewer. The lists of a GPU ignore `selector`.
    """
    shape = (len(queries), wanted)
    scores, ids = np.empty(shape, np.float32), np.empty(shape, np.int64)
    pointers = [faiss.swig_ptr(array) for array in (queries, cells, centroid_distances, scores, ids)]
    m = cells.shape[1]
    params = probe_parameters(m) if selector is None else faiss.SearchParametersIVF(nprobe=m, sel=selector)
    lists.search_preassigned_c(
        len(queries), pointers[0], wanted, pointers[1], pointers[2], pointers[3], pointers[4], False, params
    )
    return scores, ids


def are_in_order(distances: NDArray[np.float32], ids: Ids) -> bool:
    """Whether (Q, n) faces are all there, nearest first and no two of a query equally near, as nearly always.

    To count takes a quarter of the time of `all`, which calls Python.
    """
    rising = np.count_nonzero(distances[:, 1:] > distances[:, :-1])
    return bool(rising == ids.size - len(ids) and np.count_nonzero(ids[:, -1] >= 0) == len(ids))


def first_k(distances: NDArray[np.float32], ids: Ids, k: int) -> Scan:
    """Take the first k of (Q, n) by distance, then by id, padded with +inf and -1: (Q, k) twice."""
    if ids.shape[1] >= k and are_in_order(distances, ids):
        return distances[:, :k], ids[:, :k]
    order = np.lexsort((ids, np.where(ids < 0, np.float32(np.inf), distances)))[:, :k]
    query, count = np.arange(len(ids))[:, None], order.shape[1]
    first_distances = np.full((len(ids), k), np.inf, np.float32)
    first_ids = np.full((len(ids), k), -1, np.int64)
    first_ids[:, :count] = ids[query, order]
    first_distances[:, :count] = np.where(first_ids[:, :count] < 0, np.float32(np.inf), distances[query, order])
    return first_distances, first_ids


class InvertedListIndex(LocalIndex):
    """An index over inverted lists; a subclass decides where its cells lie. `_lists` is None while there are none."""

    def __init__(self, dim: int, metric: Distance = EUCLIDEAN) -> None:
        super().__init__(dim, metric)
        self._lists: Any = None
        self._sizes: NDArray[np.int64] | None = None

    @classmethod
    def create(cls, dim: int, metric: Distance, options: IndexOptions) -> Self:
        """Create an empty index of vectors with `dim` numbers. See `Index.create`."""
        raise TypeError(f"{cls.__name__} does not say how it is created")

    @classmethod
    def restore(cls, header: dict[str, Any], body: BinaryIO, device: Device) -> Self:
        """Restore an index from its snapshot. See `Index.restore`."""
        index = cls.create(header["dim"], load_distance(header["metric"]), IndexOptions(device=device))
        index.set_state(header["state"], read_lists(header, body))
        return index

    @property
    def is_trained(self) -> bool:
        """Whether the cells are placed."""
        return self._lists is not None

    @property
    def cells(self) -> int:
        return int(self._lists.nlist) if self._lists is not None else 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(p,) faces in each cell; (0,) while there are no cells."""
        if self._sizes is None:
            numbers = range(self.cells if self._lists is not None else 0)
            self._sizes = np.array([self._lists.invlists.list_size(cell) for cell in numbers], np.int64)
        return self._sizes

    def __len__(self) -> int:
        return int(self._lists.ntotal) if self._lists is not None else 0

    def ids(self) -> Ids:
        """Return the ids in the index, sorted: (N,)."""
        parts = [np.empty(0, np.int64)]
        for cell in np.flatnonzero(self.sizes).tolist():
            parts.append(faiss.rev_swig_ptr(self._lists.invlists.get_ids(cell), int(self.sizes[cell])).copy())
        return np.sort(np.concatenate(parts))

    def rows(self, ids: Ids) -> Rows:
        """Return the (n, dim) vectors of (n,) ids. Raises WrongShape if one is missing."""
        if not len(ids):
            return np.empty((0, self.dim), np.float32)
        try:
            rows: Rows = self._lists.reconstruct_batch(ids)
        except (AttributeError, RuntimeError) as error:  # no lists yet; an id that the hash table does not know
            raise WrongShape("ids", "ids that the index holds", f"{len(ids)} of which some are not") from error
        return rows

    def finish_build(self) -> None:
        """Give back the memory that lists which have grown hold beyond their rows. See `Index.finish_build`."""
        if self._lists is None:
            return
        old, sizes = self._lists.invlists, self.sizes
        exact = faiss.ArrayInvertedLists(self.cells, self._lists.code_size)
        for cell in np.flatnonzero(sizes).tolist():
            exact.add_entries(cell, int(sizes[cell]), old.get_ids(cell), old.get_codes(cell))
        exact.this.disown()
        self._lists.replace_invlists(exact, True)

    def save(self, path: Path) -> str:
        """Write a snapshot and return its SHA-256 in hex."""
        header = self._header(self.state()) | {"trained": self.is_trained}
        return write_snapshot(path, header, self.write_body)

    def write_body(self, write: Writer) -> None:
        """Write the vectors in FAISS's own format."""
        write_lists(self._lists, write)

    def state(self) -> dict[str, Any]:
        """Return what a subclass needs besides the lists after a load: attributes by name."""
        return {}

    def set_state(self, state: dict[str, Any], lists: Any) -> None:
        """Take over the attributes that `state` returned, and FAISS's lists."""
        vars(self).update(state, _lists=lists)

    def _add(self, ids: Ids, rows: Rows) -> None:
        self._lists.add_with_ids(rows, ids)
        self._sizes = None

    def remove(self, ids: Ids) -> None:
        """Remove these (n,) ids; ids that are not present are ignored."""
        if len(self) and len(ids):
            unwanted = np.ascontiguousarray(ids, np.int64)
            self._lists.remove_ids(faiss.IDSelectorArray(len(unwanted), faiss.swig_ptr(unwanted)))
            self._sizes = None

    def _search(self, queries: Rows, k: int, m: int, allowed: Ids | None) -> Neighbours:
        among, count = None if allowed is None else np.asarray(allowed[allowed >= 0], np.int64), len(self)
        if among is not None and len(among) * self.cells <= m * count:
            m = self.cells  # costs no more distances than m whole cells, and misses nobody
        centroid_distances, cells = self._probe(queries, m)
        selector = None if among is None else id_selector(among)
        distances, ids = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        wanted = min(k + 1, count)
        while wanted and len(queries):
            distances, ids = self._scan(queries, wanted, centroid_distances, cells, selector)
            if wanted > k and are_in_order(distances, ids):
                return Neighbours(ids[:, :k], distances[:, :k], self._fraction(cells, among), m)
            cut = (ids[:, -1] >= 0) & (distances[:, min(k, wanted) - 1] == distances[:, -1])
            if wanted == count or not cut.any():
                break
            wanted = min(2 * wanted, count)  # equal distances on both sides of the cut: fetch all of them
        distances, ids = first_k(distances, ids, k)
        return Neighbours(ids, distances, self._fraction(cells, among), m)

    def _probe(self, queries: Rows, m: int) -> Scan:
        """The m nearest cells of each query: (Q, m) distances and numbers."""
        if self.cells == 1 or not len(queries):
            return np.zeros((len(queries), 1), np.float32), np.zeros((len(queries), 1), np.int64)
        distances, cells = np.empty((len(queries), m), np.float32), np.empty((len(queries), m), np.int64)
        pointers = [faiss.swig_ptr(array) for array in (queries, distances, cells)]
        self._lists.quantizer.search_c(len(queries), pointers[0], m, pointers[1], pointers[2])
        return distances, cells

    def _scan(
        self, queries: Rows, wanted: int, centroid_distances: NDArray[np.float32], cells: Ids, selector: Any
    ) -> Scan:
        """The `wanted` nearest in (Q, m) cells, equal distances in any order; id -1 where there are fewer."""
        whole, helpers = (queries, centroid_distances, cells), scan_helpers()
        numbers = cells.size * len(self) * self.dim / self.cells
        if not helpers.count or len(queries) < MIN_SHARED_QUERIES or numbers < MIN_SHARED_NUMBERS:
            return self._scan_part(whole, wanted, selector)
        parts = split_scan(whole, 1 + helpers.count)
        scans = helpers.run([partial(self._scan_part, part, wanted, selector) for part in parts])
        return np.concatenate([scan[0] for scan in scans]), np.concatenate([scan[1] for scan in scans])

    def _scan_part(self, part: ScanPart, wanted: int, selector: Any) -> Scan:
        queries, centroid_distances, cells = part
        scores, ids = scan_lists(self._lists, queries, wanted, centroid_distances, cells, selector)
        return self._as_distances(scores), ids

    def _as_distances(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """FAISS's scores as distances: smaller is more alike."""
        return scores if self.metric.faiss_metric == "L2" else -scores

    def _fraction(self, cells: Ids, among: Ids | None) -> NDArray[np.float64]:
        """(Q,) distances to centroids and rows over the number of rows; with a filter, an upper bound."""
        count, centroids = len(self), self.cells
        scanned = np.add.reduce(self.sizes.take(cells), 1) if count else np.zeros(len(cells), np.int64)
        if among is not None:
            scanned = np.minimum(scanned, len(among))
        fraction: NDArray[np.float64] = (scanned + (centroids if centroids > 1 else 0)) / max(1, count)
        return fraction
