"""An index in this process. Many threads search it, and only the follower changes it."""

import math
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from readerwriterlock.rwlock import RWLockWrite

from app.serving.compensation.store import NO_COMPENSATION, Compensation
from app.serving.index_builder import EmbeddingBatch, IndexKey
from ml.errors import WrongShape
from ml.identification.templates import PersonTemplate
from ml.indexes.base import Index, Neighbours
from ml.model import Model
from ml.types import Ids, Rows

REBUILD_SIZE_RATIO = 0.1
ROWS_PER_READ = 8_192
SEARCH_SMOOTHING = 0.1


@dataclass(frozen=True)
class IndexState:
    """The last change that an index has applied, and the number of its faces."""

    change: int
    vectors: int


class LoadedIndex:
    """The index of one model in one collection, with that model."""

    def __init__(
        self, key: IndexKey, model: Model, index: Index, change: int, compensation: Compensation = NO_COMPENSATION
    ) -> None:
        self.key, self.model = key, model
        self.compensation = compensation  # of its rows; queries are corrected likewise
        self.dim, self.built_with = index.dim, len(index)
        self.removed_count = 0  # since it was loaded or built
        self.index = index
        self.lock = RWLockWrite()  # shared by searches; held alone for changes, which searches do not overtake
        self.state = IndexState(change, len(index))
        self.loaded_at = time.monotonic()
        self.last_change_at = self.loaded_at  # when a face was last added or removed, by the monotonic clock
        self.saved_change: int | None = None  # the change of its snapshot on disk
        self.save_tried_at = float("-inf")  # when a snapshot was last tried, by the monotonic clock
        self.matches_table = False  # rows, vectors and ids had equal counts when last compared
        self.compared_change: int | None = None  # the change at which they were
        self.compared_at = float("-inf")  # and when, by the monotonic clock
        self.comparison_due = False  # a health check saw counts differ: compare at the next step
        self.is_stale = False  # it differs from its table and must be rebuilt
        self.person_templates: dict[int, PersonTemplate] = {}  # by person; emptied at every change
        self.search_seconds = float("inf")  # processor time of a search by one vector, a moving average
        self.update_lock = threading.Lock()  # held while the index is updated or saved

    @property
    def bytes(self) -> int:
        return self.state.vectors * self.dim * 4

    @property
    def cells(self) -> int:
        return self.index.cells

    @property
    def default_candidates(self) -> int | None:
        return self.index.default_candidates

    def search(
        self, rows: Rows, k: int, m: int | None = None, allowed: Ids | None = None, candidates: int | None = None
    ) -> Neighbours:
        """Search the index; see `Index.search`. Any number of threads may search at once."""
        with self.lock.gen_rlock():
            started = time.thread_time()
            neighbours = self.index.search(rows, k, m=m, allowed=allowed, candidates=candidates)
            if allowed is None and len(rows):
                self._note_search((time.thread_time() - started) / len(rows))
            return neighbours

    def search_many(self, rows: Rows, k: int) -> Neighbours:
        """Search the index to measure it; see `Index.search_many`."""
        with self.lock.gen_rlock():
            return self.index.search_many(rows, k)

    def _note_search(self, seconds: float) -> None:
        known = self.search_seconds
        self.search_seconds = seconds if math.isinf(known) else known + SEARCH_SMOOTHING * (seconds - known)

    def note_comparison(self, matches: bool, change: int) -> None:
        """Note whether rows, vectors and ids had equal counts at a change."""
        self.matches_table, self.compared_change, self.compared_at = matches, change, time.monotonic()

    def read_ids(self) -> Ids:
        """Return the pks of the faces in the index, rising: (N,)."""
        with self.lock.gen_rlock():
            return self.index.ids()

    def iterate_rows(self, ids: Ids, count: int = ROWS_PER_READ) -> Iterator[EmbeddingBatch]:
        """Yield the rows of (n,) ids in batches; those that the index does not hold are left out. count: of a batch"""
        while len(ids):
            held, rows = self.read_rows(ids[:count])
            yield held, rows
            is_one_missing = len(held) < min(count, len(ids))
            ids = ids[count:]
            if is_one_missing:
                ids = ids[np.isin(ids, self.read_ids())]  # once, since it reads all of the index

    def read_rows(self, ids: Ids) -> EmbeddingBatch:
        """Return those of (n,) ids that the index holds, with their rows."""
        with self.lock.gen_rlock():
            try:
                return ids, self.index.rows(ids)
            except WrongShape:
                ids = ids[np.isin(ids, self.index.ids())]
                return ids, self.index.rows(ids)

    def apply(self, removed: Ids, added: Iterable[EmbeddingBatch], change: int) -> None:
        """Apply all changes up to `change`. A search waits for one batch at most."""
        if len(removed):
            with self.lock.gen_wlock():
                self.index.remove(removed)
            self.removed_count += len(removed)
        for ids, rows in added:
            with self.lock.gen_wlock():
                self.index.add(ids, rows)
        if len(removed) or len(self.index) != self.state.vectors:
            self.last_change_at = time.monotonic()
        self.state = IndexState(change, len(self.index))
        self.person_templates = {}

    def has_outgrown_cells(self) -> bool:
        """Whether a rebuild is due: enough faces have come or gone for it to help, or it holds values of those gone."""
        if self.index.has_lost_rows():
            return True
        changed = max(abs(self.state.vectors - self.built_with), self.removed_count)
        return changed > REBUILD_SIZE_RATIO * self.built_with and self.index.needs_rebuild()
