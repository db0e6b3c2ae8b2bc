"""One index in this process: searched by many, changed by the follower alone."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from app.serving.index_builder import Batch, Place
from app.serving.shared_lock import SharedLock
from ml.identification.templates import PersonTemplate
from ml.indexes.base import Index, Neighbours
from ml.model import Model
from ml.types import Ids, Rows

REGROWN = 0.1


@dataclass(frozen=True)
class Standing:
    """Up to which change an index follows its table, and how many faces it holds."""

    change: int
    vectors: int


class Held:
    """The index of a place, with the generation that it belongs to. Who holds a reference keeps it alive."""

    def __init__(self, place: Place, generation: Model, index: Index, change: int) -> None:
        self.place, self.generation = place, generation
        self.dim, self.built_with = index.dim, len(index)
        self.index = index
        self.lock = SharedLock()
        self.standing = Standing(change, len(index))
        self.moved_at = time.monotonic()  # when it last gained or lost a face
        self.saved: int | None = None  # the change of the snapshot on the disk
        self.saved_at = float("-inf")  # when that was last tried, by the monotonic clock
        self.agreed = False  # rows, vectors and ids were as many when they were last compared
        self.suspected = False  # somebody saw them differ: to be compared at the next step
        self.wrong = False  # it differs from its table: another is to be built
        self.person_templates: dict[int, PersonTemplate] = {}  # by subject pk, of the index as it is
        self.changing = threading.Lock()  # of who follows, or copies all of it to the disk

    @property
    def bytes(self) -> int:
        return self.standing.vectors * self.dim * 4

    @property
    def cells(self) -> int:
        return self.index.cells

    def search(self, rows: Rows, k: int, m: int | None = None, allowed: Ids | None = None) -> Neighbours:
        """See `Index.search`; any number of threads at once."""
        with self.lock.shared():
            return self.index.search(rows, k, m=m, allowed=allowed)

    def apply(self, removed: Ids, added: Iterable[Batch], change: int) -> None:
        """Brings it to that change. Searches wait for one batch at most, never for all of it."""
        if len(removed):
            with self.lock.alone():
                self.index.remove(removed)
        for ids, rows in added:
            with self.lock.alone():
                self.index.add(ids, rows)
        if len(removed) or len(self.index) != self.standing.vectors:
            self.moved_at = time.monotonic()
        self.standing = Standing(change, len(self.index))
        self.person_templates = {}

    def outgrown(self) -> bool:
        """Worth building anew, and different enough from when it was built that this would help."""
        here = self.standing.vectors
        return abs(here - self.built_with) > REGROWN * self.built_with and self.index.needs_rebuild()
