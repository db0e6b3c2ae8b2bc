"""Load an index from its snapshot or build it from the rows, and apply later changes to it."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from sqlalchemy.orm import Session

from app.db.session import snapshot
from app.resources import Resources
from app.serving import index_builder
from app.serving.compensation.store import NO_COMPENSATION, Compensation, read_compensation
from app.serving.faces.face_table import FaceTable
from app.serving.faces.lost_faces import hash_contents
from app.serving.index_builder import IndexKey
from app.serving.index_snapshots import SnapshotStore
from app.serving.loaded_index import LoadedIndex
from app.threads import all_cores

log = logging.getLogger("likeness.engine")

NO_IDS = np.empty(0, np.int64)


class IndexLoader:
    """Reads tables and snapshots, and deletes a snapshot that contains a deleted face."""

    def __init__(self, resources: Resources, snapshots: SnapshotStore) -> None:
        self.resources, self.snapshots = resources, snapshots
        self._embedding_sizes: dict[tuple[str, str], int] = {}

    def load(
        self, session: Session, key: IndexKey, read_faces: Callable[[], FaceTable], *, on_all_cores: bool = False
    ) -> LoadedIndex:
        """Load the snapshot and bring it up to date. If it is missing or disagrees with the rows, build the index anew.

        read_faces: reads or waits for the table of the collection's faces
        on_all_cores: to build a large index, while there are no searches to slow down
        Raises OperationalError, NotFound, ml.Corrupt.
        """
        saved = self.snapshots.load(key, self.resources.settings.index_device)
        if saved is not None:
            compensation = _read_compensation(session, key)
            loaded = LoadedIndex(key, self.resources.models.get(key.model_id), saved.index, saved.change, compensation)
            loaded.saved_change = loaded.state.change
            is_known = (
                compensation.version == key.compensation and hash_contents(loaded, read_faces()) == saved.contents
            )
            if is_known and self.update(loaded, compare=True) and not loaded.index.needs_rebuild():
                return loaded
            log.warning("index.snapshot_stale collection=%s task=%s", key.collection, key.task)
        return self.build(session, key, on_all_cores=on_all_cores)

    def make_empty(self, key: IndexKey) -> LoadedIndex:
        """Make the index of a collection that has never had a face, for which no table is read."""
        model, device, ids = self.resources.models.get(key.model_id), self.resources.settings.index_device, NO_IDS
        chosen, folder = index_builder.choose_index(model), self.resources.indexes
        index = index_builder.assemble_index(
            ids, (), (), self.embedding_size(key), model.metric, device, chosen=chosen, folder=folder
        )
        loaded = LoadedIndex(key, model, index, change=0)
        loaded.note_comparison(True, 0)
        return loaded

    def build(self, session: Session, key: IndexKey, *, on_all_cores: bool = False) -> LoadedIndex:
        """Build the index from the rows, corrected by the current compensation."""
        started = time.monotonic()
        model, device = self.resources.models.get(key.model_id), self.resources.settings.index_device
        change = index_builder.read_change(session, key.collection, key.collection_created_at) or 0
        compensation = _read_compensation(session, key)
        key = replace(key, compensation=compensation.version)
        with all_cores(self.resources.settings.api_processes) if on_all_cores else nullcontext():
            index = index_builder.build_index(
                session,
                key,
                self.embedding_size(key),
                model.metric,
                device,
                compensation=compensation,
                chosen=index_builder.choose_index(model),
                folder=self.resources.indexes,
            )
        loaded = LoadedIndex(key, model, index, change, compensation)
        loaded.note_comparison(index_builder.count_rows(session, key) == (len(index), len(index)), change)
        seconds = time.monotonic() - started
        log.info("index.built collection=%s task=%s vectors=%d s=%.2f", key.collection, key.task, len(index), seconds)
        return loaded

    def rebuild(self, loaded: LoadedIndex) -> LoadedIndex:
        """Build an index with new cells from the rows that a loaded one holds, without the tables.

        What changes meanwhile is read by the next `update`. An index that is stale, or that the model names, is built
        from the tables.
        """
        if loaded.is_stale or index_builder.choose_index(loaded.model) is not None:
            with snapshot(self.resources.database) as session:
                return self.build(session, loaded.key)
        started, change = time.monotonic(), loaded.state.change
        ids = loaded.read_ids()
        index = index_builder.assemble_index(
            ids,
            loaded.iterate_rows(ids),
            loaded.iterate_rows(ids),
            loaded.dim,
            loaded.model.metric,
            self.resources.settings.index_device,
        )
        rebuilt = LoadedIndex(loaded.key, loaded.model, index, change, loaded.compensation)
        rebuilt.comparison_due = True
        seconds = time.monotonic() - started
        log.info("index.rebuilt collection=%s vectors=%d s=%.2f", loaded.key.collection, len(index), seconds)
        return rebuilt

    def update(self, loaded: LoadedIndex, *, compare: bool = False) -> bool:
        """Apply the changes since its last one. Returns False if it disagrees with its table and must be rebuilt.

        compare: whether to compare the numbers of faces and embeddings in the tables with the index, too
        """
        key, since = loaded.key, loaded.state.change
        with snapshot(self.resources.database) as session:
            change = index_builder.read_change(session, key.collection, key.collection_created_at)
            if change is None:
                return True  # the collection was deleted; the next step drops this index
            if change < since:
                return False
            removed = index_builder.read_removed(session, key, since)
            if len(removed):
                self.snapshots.delete(key)
                loaded.saved_change = None
            added = index_builder.read_added(session, key, loaded.dim, loaded.compensation, since)
            loaded.apply(removed, added, change)
            if compare:
                faces, embeddings = index_builder.count_rows(session, key)
                loaded.note_comparison(faces == embeddings == loaded.state.vectors, change)
                loaded.comparison_due = False
                return embeddings == loaded.state.vectors
            return True

    def has_deleted_faces(self, loaded: LoadedIndex) -> bool:
        """Whether an index holds faces that have been deleted, or whose collection has been."""
        key, since = loaded.key, loaded.state.change
        with snapshot(self.resources.database) as session:
            change = index_builder.read_change(session, key.collection, key.collection_created_at)
            return change is None or len(index_builder.read_removed(session, key, since)) > 0

    def embedding_size(self, key: IndexKey) -> int:
        """Return the size of the embeddings of this index."""
        known = key.model_id, key.task
        if known not in self._embedding_sizes:
            model = self.resources.models.get(key.model_id)
            self._embedding_sizes[known] = index_builder.find_embedding_size(model, key.task)
        return self._embedding_sizes[known]


def _read_compensation(session: Session, key: IndexKey) -> Compensation:
    """Return the current compensation. Until the follower knows of one, there is none: it then loads another index."""
    if key.compensation == 0:
        return NO_COMPENSATION
    return read_compensation(session, key.collection, key.task, key.model_id)
