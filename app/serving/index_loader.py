"""How an index comes to be: from its snapshot or from the rows; and how it follows them."""

import logging
import time

from app.db.session import snapshot
from app.resources import Resources
from app.serving import index_builder
from app.serving.index_builder import Place
from app.serving.loaded_index import Held
from app.serving.snapshots import Shelf

log = logging.getLogger("likeness.engine")


class Opener:
    """Reads tables and snapshots; writes neither."""

    def __init__(self, resources: Resources, shelf: Shelf) -> None:
        self.resources, self.shelf = resources, shelf
        self._widths: dict[tuple[str, str], int] = {}

    def open(self, place: Place) -> Held:
        """From its snapshot, brought up to date, if that is intact and agrees with the tables; else from the rows.

        Raises OperationalError, NotFound, ml.Corrupt.
        """
        found = self.shelf.load(place, self.resources.settings.index_device)
        if found is not None:
            held = Held(place, self.resources.generations.get(place.generation), *found)
            held.saved = held.standing.change
            if self.follow(held, compare=True) and not held.index.needs_rebuild():
                return held
            log.warning("index.snapshot_stale collection=%s task=%s", place.collection, place.task)
        return self.build(place)

    def build(self, place: Place) -> Held:
        """From the rows alone."""
        started, generation, dim = time.monotonic(), self.resources.generations.get(place.generation), self.width(place)
        with snapshot(self.resources.database) as session:
            change = index_builder.change(session, place) or 0
            index = index_builder.build(session, place, dim, generation.metric, self.resources.settings.index_device)
            held = Held(place, generation, index, change)
            held.agreed = index_builder.counts(session, place) == (len(index), len(index))
        seconds = time.monotonic() - started
        log.info(
            "index.built collection=%s task=%s vectors=%d s=%.2f", place.collection, place.task, len(index), seconds
        )
        return held

    def follow(self, held: Held, *, compare: bool = False) -> bool:
        """Brings it to the last change. False: it does not agree with its table, and must be built anew.

        compare: also counts the table's rows and vectors.
        """
        place, since = held.place, held.standing.change
        with snapshot(self.resources.database) as session:
            change = index_builder.change(session, place)
            if change is None:
                return True  # the collection is gone, and with the next step so is this
            if change < since:
                return False
            removed = index_builder.removed(session, place, since)
            if len(removed):
                self.shelf.forget(place)
                held.saved = None
            held.apply(removed, index_builder.added(session, place, held.dim, since), change)
            if compare:
                rows, vectors = index_builder.counts(session, place)
                held.agreed, held.suspected = rows == vectors == held.standing.vectors, False
                return vectors == held.standing.vectors
            return True

    def width(self, place: Place) -> int:
        """How many numbers a vector has there."""
        known = place.generation, place.task
        if known not in self._widths:
            self._widths[known] = index_builder.width(self.resources.generations.get(place.generation), place.task)
        return self._widths[known]
