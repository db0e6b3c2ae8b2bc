"""Rows of numbers by id, in memory or in a file that is mapped into memory."""

import mmap
import tempfile
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.errors import WrongShape
from ml.types import Ids, Rows

MIN_CAPACITY = 1024
GROWTH = 1.25
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class RowStore:
    """Rows under ids. Each row has a slot, which it keeps until it is removed; a removed row is overwritten with zeros.

    folder: where the file of the rows lies, which has no name and vanishes with the process; None: in memory. The
        system keeps the part of a file that is read often in memory, and may drop it at any time.
    ids: (N,) rising; slots: (N,) of these ids
    """

    def __init__(self, dim: int, folder: Path | None = None) -> None:
        self.dim = dim
        self.ids, self.slots = np.empty(0, np.int64), np.empty(0, np.int64)
        self._folder = folder
        self._map: mmap.mmap | None = None
        self._rows: Rows = np.empty((0, dim), np.float32)
        self._slot_ids = np.empty(0, np.int64)  # (capacity,), -1 where a slot is free

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return len(self._slot_ids)

    def find_slots(self, ids: Ids) -> Ids:
        """Return the slots of those of (n,) ids that are present, in their order."""
        if not len(self):
            return np.empty(0, np.int64)
        positions = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
        slots: Ids = self.slots[positions[self.ids[positions] == ids]]
        return slots

    def find_ids(self, slots: Ids) -> Ids:
        """Return the ids of slots of any shape; -1 where the slot is -1."""
        return np.where(slots < 0, -1, self._slot_ids[slots])

    def read(self, ids: Ids) -> Rows:
        """Return a copy of the (n, dim) rows of (n,) ids. Raises WrongShape if one is missing."""
        slots = self.find_slots(ids)
        if len(slots) < len(ids):
            raise WrongShape("ids", "ids that the index holds", f"{len(ids)} of which some are not")
        return self._rows[slots]

    def read_slots(self, slots: Ids) -> Rows:
        """Return a copy of the (n, dim) rows of (n,) slots."""
        rows: Rows = self._rows[slots]
        return rows

    def add(self, ids: Ids, rows: Rows) -> Ids:
        """Add (n, dim) rows under (n,) new ids, and return their slots: (n,)."""
        free = np.flatnonzero(self._slot_ids < 0)
        if len(free) < len(ids):
            self._grow(len(self) + len(ids))
            free = np.flatnonzero(self._slot_ids < 0)
        slots = free[: len(ids)].astype(np.int64)
        self.put(ids, slots, rows)
        return slots

    def put(self, ids: Ids, slots: Ids, rows: Rows) -> None:
        """Add (n, dim) rows under (n,) new ids in (n,) free slots."""
        if len(slots) and slots.max() >= self.capacity:
            self._grow(int(slots.max()) + 1)
        self._rows[slots], self._slot_ids[slots] = rows, ids
        order = np.argsort(ids)
        at = np.searchsorted(self.ids, ids[order])
        self.ids, self.slots = np.insert(self.ids, at, ids[order]), np.insert(self.slots, at, slots[order])

    def remove(self, ids: Ids) -> Ids:
        """Remove those of (n,) ids that are present, and return the slots that they had."""
        slots = np.unique(self.find_slots(ids))
        if len(slots):
            self._rows[slots], self._slot_ids[slots] = 0, -1
            kept = self._slot_ids[self.slots] >= 0
            self.ids, self.slots = self.ids[kept], self.slots[kept]
        return slots

    def compute_distances(self, queries: Rows, slots: Ids, metric: Distance) -> NDArray[np.float32]:
        """Compute the distances of (Q, dim) transformed queries to their (Q, n) slots; +inf where a slot is -1."""
        slots = np.ascontiguousarray(slots, np.int64)
        distances = np.empty(slots.shape, np.float32)
        is_l2 = metric.faiss_metric == "L2"
        compute = faiss.fvec_L2sqr_by_idx if is_l2 else faiss.fvec_inner_products_by_idx
        pointers = [faiss.swig_ptr(array) for array in (distances, queries, self._rows, slots)]
        compute(*pointers, self.dim, *slots.shape)
        if not is_l2:
            np.negative(distances, out=distances)
        distances[slots < 0] = np.inf
        return distances

    def _grow(self, count: int) -> None:
        """Make room for so many rows. Pages that hold none take no memory."""
        capacity = max(MIN_CAPACITY, count, int(GROWTH * self.capacity))
        size = 4 * self.dim * capacity
        self._rows = np.empty((0, self.dim), np.float32)  # a map whose memory is in use cannot be resized
        if self._map is None:
            self._map = _map_file(self._folder, size) if self._folder else mmap.mmap(-1, size, flags=ANONYMOUS)
        else:
            self._map.resize(size)
        self._rows = np.frombuffer(self._map, np.float32).reshape(capacity, self.dim)
        added = np.full(capacity - self.capacity, -1, np.int64)
        self._slot_ids = np.concatenate([self._slot_ids, added])


def _map_file(folder: Path, size: int) -> mmap.mmap:
    """Map a new file of this size, which has no name. Raises OSError."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)
