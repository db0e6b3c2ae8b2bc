"""Two stages: codes of a few bits find candidates in the probed cells, and the rows themselves rank these."""

from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ml import options as component_options
from ml.distances import EUCLIDEAN, Distance, load_distance
from ml.errors import WrongShape
from ml.indexes.base import Device, IndexOptions, LocalIndex, Neighbours
from ml.indexes.common.cells import MAX_FLAT_FACES, default_cell_count, has_outgrown, imbalance
from ml.indexes.common.centroids import FittedFaces
from ml.indexes.common.compressed_lists import MIN_TRAINING_ROWS, CompressedLists
from ml.indexes.common.inverted_lists import Scan, first_k, id_selector
from ml.indexes.common.row_store import RowStore
from ml.indexes.common.snapshot_file import Writer, write_snapshot
from ml.indexes.common.two_stage_options import TwoStageOptions
from ml.types import Ids, Rows

NO_CELLS: Ids = np.empty(0, np.int64)
DEFAULT_CANDIDATES = 200
CANDIDATES_PER_MATCH = 2
"""A search never ranks fewer candidates than so many times k."""
MAX_SCAN_ROWS = 1 << 16
MAX_SCAN_PAIRS = 1 << 20
"""An exhaustive search computes the distances of so many rows, and of so many pairs, at once."""
ROWS_PER_READ = 1 << 14
MAX_REMOVED_SHARE = 0.1
"""Of the rows that the codes were fitted to. Their values say where somebody lay who had many of these rows."""


class TwoStageIndex(LocalIndex):
    """The codes stay in memory, and the rows of `candidates` faces are read for each query.

    With m = p and no `candidates`, all rows are read and the result is exact. An index that is trained on fewer than
    `MIN_TRAINING_ROWS` rows has no codes and one cell, and is exact too, until it is rebuilt.
    p, m, seed, folder: see `IndexOptions`; further options: see `TwoStageOptions`. It has no GPU form, so that it runs
    on the CPU whatever the device.
    """

    option_class: ClassVar[type[TwoStageOptions]] = TwoStageOptions

    def __init__(
        self,
        dim: int,
        metric: Distance = EUCLIDEAN,
        *,
        p: int | None = None,
        m: int | None = None,
        seed: int = 0,
        folder: Path | None = None,
        **further: Any,
    ) -> None:
        super().__init__(dim, metric)
        if metric.faiss_metric is None:
            raise WrongShape("metric", "one that FAISS knows", metric)
        if p is not None and p < 1:
            raise WrongShape("p", "1 or more cells", p)
        self.options = component_options.from_options(TwoStageOptions, further)
        self.p, self.m, self.seed = p, m, seed
        self.trained_on, self.trained_imbalance, self._removed = 0, 1.0, 0
        self._fitted, self._replaced_cells = FittedFaces.of(-1, NO_CELLS), NO_CELLS
        self._store = RowStore(dim, (folder or Path(".")) if self.options.rows == "file" else None)
        self._lists: CompressedLists | None = None

    @classmethod
    def suits(cls, cells: int, metric: Distance) -> bool:
        """See `Index.suits`: it is built only if it is named."""
        return False

    @classmethod
    def create(cls, dim: int, metric: Distance, options: IndexOptions) -> Self:
        """Create an empty index. Raises WrongShape; TypeError for an unknown option."""
        further = dict(options.further)
        return cls(dim, metric, p=options.p, m=options.m, seed=options.seed, folder=options.folder, **further)

    @classmethod
    def restore(cls, header: dict[str, Any], body: BinaryIO, device: Device) -> Self:
        """Restore an index from its snapshot; a file of rows lies in the folder of the snapshot."""
        state = header["state"]
        folder = Path(getattr(body, "name", ".")).parent
        index = cls(header["dim"], load_distance(header["metric"]), folder=folder, **state["options"])
        index.trained_on, index.trained_imbalance = state["trained_on"], state["trained_imbalance"]
        index._removed, index._fitted = state["removed"], FittedFaces.from_state(state["fitted"])
        ids, slots = (np.frombuffer(body.read(8 * state["count"]), np.int64) for _ in range(2))
        for start in range(0, len(ids), ROWS_PER_READ):
            part = slice(start, start + ROWS_PER_READ)
            rows = np.frombuffer(body.read(4 * index.dim * len(ids[part])), np.float32).reshape(-1, index.dim)
            index._store.put(ids[part], slots[part], rows)
        index._lists = CompressedLists.read(body, index.dim) if state["has_codes"] else None
        return index

    @property
    def cells(self) -> int:
        return self._lists.cells if self._lists is not None else 1

    @property
    def default_m(self) -> int:
        """Four times as many cells as `IvfIndex` probes: a code takes a fifth of the time of a distance or less."""
        return self.m or max(32, self.cells // 4)

    @property
    def default_candidates(self) -> int | None:
        return DEFAULT_CANDIDATES if self._lists is not None else None

    @property
    def bytes_per_face(self) -> int:
        """Bytes of memory per face: its code, its row unless that lies in a file, and what leads from id to row."""
        code = self._lists.bytes_per_row + 8 if self._lists is not None else 0
        return code + 24 + (4 * self.dim if self.options.rows == "memory" else 0)

    def __len__(self) -> int:
        return len(self._store)

    def ids(self) -> Ids:
        """Return the ids in the index, sorted: (N,)."""
        return self._store.ids.copy()

    def rows(self, ids: Ids) -> Rows:
        """Return the (n, dim) vectors of (n,) ids. Raises WrongShape if one is missing."""
        return self._store.read(ids)

    def train(self, rows: Rows) -> None:
        """Place the cells and fit the codes to (N, dim) rows, unless they are too few."""
        self.trained_on, self._removed = len(rows), 0
        if len(rows) < MIN_TRAINING_ROWS:
            return
        cells = min(self.p or default_cell_count(len(rows)), len(rows))
        self._lists = CompressedLists.train(rows, cells, self.options.bits, self.metric, self.seed)
        self.trained_imbalance = imbalance(self._lists.count_per_cell(rows))

    def needs_rebuild(self) -> bool:
        """Whether it has outgrown its cells, they are unbalanced, it has no codes and would gain by them, or many rows
        were removed that its codes are fitted to."""
        if self.has_lost_rows():
            return True
        if self._lists is None or self.cells == 1:
            return len(self) > MAX_FLAT_FACES
        return bool(len(self)) and has_outgrown(self._lists.sizes, self.trained_on, self.trained_imbalance)

    def has_lost_rows(self) -> bool:
        """Whether more rows were removed since the build than `MAX_REMOVED_SHARE` of those that its codes are fitted
        to. Rows that were replaced do not count: their faces are still here."""
        return self._lists is not None and self._removed > MAX_REMOVED_SHARE * self.trained_on

    def finish_build(self) -> None:
        """Take the present size as the size the cells were made for."""
        self.trained_on, self._removed = len(self), 0
        self._fit_to_present()

    def _fit_to_present(self) -> None:
        """Take the present faces as those for which the cells were placed."""
        if self._lists is not None:
            self._lists.clear_empty_cells(self.metric)
        sizes = self._lists.sizes if self._lists is not None else NO_CELLS
        self._fitted = FittedFaces.of(int(self._store.ids[-1]) if len(self) else -1, sizes)

    def remove(self, ids: Ids) -> None:
        """Remove these (n,) ids; ids that are not present are ignored. An index that is empty then has no cells."""
        before = len(self)
        self._renew(self._remove_rows(ids))
        self._removed += before - len(self)

    def _take_out(self, ids: Ids) -> None:
        """See `LocalIndex._take_out`. `_add` renews the centroids, when the cells have got back what is not changed."""
        self._replaced_cells = self._remove_rows(ids)

    def _remove_rows(self, ids: Ids) -> Ids:
        """Remove these (n,) ids, and return the cells in which they were."""
        slots = self._store.remove(ids)
        if not len(self):
            self._lists, self._fitted = None, FittedFaces.of(-1, NO_CELLS)
        return self._lists.remove(slots) if self._lists is not None and len(slots) else NO_CELLS

    def _renew(self, cells: Ids) -> None:
        if self._lists is not None and len(cells):
            self._lists.renew(cells, self._store, self._fitted, self.metric)

    def _add(self, ids: Ids, rows: Rows) -> None:
        if is_new := self._lists is None and not len(self):
            self.train(rows)
        slots = self._store.add(ids, rows)
        if self._lists is not None:
            self._lists.add(slots, rows)
        if is_new:
            self._fit_to_present()
        self._renew(self._replaced_cells)
        self._replaced_cells = NO_CELLS

    def search(
        self, queries: Rows, k: int, *, m: int | None = None, allowed: Ids | None = None, candidates: int | None = None
    ) -> Neighbours:
        """Find the k nearest faces of each of (Q, dim) queries. See `Index.search`."""
        queries, m = self._prepare_search(queries, k, m)
        among = self._store.slots if allowed is None else self._store.find_slots(np.unique(allowed))
        is_exact = m == self.cells and (candidates is None or candidates >= len(among))
        count = max(candidates or DEFAULT_CANDIDATES, CANDIDATES_PER_MATCH * k)
        if self._lists is None or is_exact or (allowed is not None and len(among) <= count):
            distances, nearest = self._rank_all(queries, among, k)
            scanned = np.full(len(queries), len(among))
            return Neighbours(nearest, distances, scanned / max(1, len(self)), self.cells)
        selector = None if allowed is None else id_selector(among)
        slots = self._lists.search(queries, min(count, len(self)), m, selector)
        distances = self._store.compute_distances(queries, slots, self.metric)
        distances, nearest = first_k(distances, self._store.find_ids(slots), k)
        computed = self._lists.count_scanned(queries, m) + (slots >= 0).sum(axis=1)
        centroids = self.cells if self.cells > 1 else 0
        return Neighbours(nearest, distances, (centroids + computed) / max(1, len(self)), m)

    def _search(self, queries: Rows, k: int, m: int, allowed: Ids | None) -> Neighbours:
        return self.search(queries, k, m=m, allowed=allowed)

    def _rank_all(self, queries: Rows, slots: Ids, k: int) -> Scan:
        """The k nearest among (n,) slots by the rows themselves: (Q, k) distances and ids, ties by id."""
        scans = [(np.empty((0, k), np.float32), np.empty((0, k), np.int64))]
        step = max(1, MAX_SCAN_PAIRS // max(1, min(len(slots), MAX_SCAN_ROWS)))
        for start in range(0, len(queries), step):
            scans.append(self._rank_block(queries[start : start + step], slots, k))
        distances, ids = (np.concatenate(parts) for parts in zip(*scans, strict=True))
        return distances, ids

    def _rank_block(self, queries: Rows, slots: Ids, k: int) -> Scan:
        best = np.full((len(queries), k), np.inf, np.float32)
        best_ids = np.full((len(queries), k), -1, np.int64)
        for start in range(0, len(slots), MAX_SCAN_ROWS):
            part = slots[start : start + MAX_SCAN_ROWS]
            pairs = np.broadcast_to(part, (len(queries), len(part)))
            distances, ids = self._store.compute_distances(queries, pairs, self.metric), self._store.find_ids(part)
            for query, row in enumerate(distances):
                near = np.flatnonzero(row <= min(best[query, -1], _find_kth(row, k)))
                joined = np.append(best[query], row[near]), np.append(best_ids[query], ids[near])
                [best[query]], [best_ids[query]] = first_k(joined[0][None], joined[1][None], k)
        return best, best_ids

    def save(self, path: Path) -> str:
        """Write a snapshot and return its SHA-256 in hex."""
        options = {"p": self.p, "m": self.m, "seed": self.seed} | vars(self.options)
        state = {
            "options": options,
            "count": len(self),
            "has_codes": self._lists is not None,
            "trained_on": self.trained_on,
            "trained_imbalance": self.trained_imbalance,
            "removed": self._removed,
            "fitted": self._fitted.to_state(),
        }
        return write_snapshot(path, self._header(state), self._write_body)

    def _write_body(self, write: Writer) -> None:
        write(self._store.ids.tobytes())
        write(self._store.slots.tobytes())
        for start in range(0, len(self), ROWS_PER_READ):
            write(self._store.read(self._store.ids[start : start + ROWS_PER_READ]).tobytes())
        if self._lists is not None:
            self._lists.write(write)


def _find_kth(row: NDArray[np.float32], k: int) -> float:
    """The k-th smallest of (n,) numbers; +inf if there are fewer."""
    return float(np.partition(row, k - 1)[k - 1]) if len(row) >= k else np.inf
