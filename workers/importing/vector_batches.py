"""Enrol the rows of an imported file of vectors, batch by batch. A batch and the job's progress are one transaction."""

import json
import logging
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from sqlalchemy import insert
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.session import large_cache, reading, writing
from app.db.tables import BUILT_IN_TASK, Job, JobItem
from app.enrolment.preparation import list_champions, list_models_to_embed
from app.enrolment.vectors.bulk_store import (
    BatchOutcome,
    Embeddings,
    VectorRecord,
    identify_vectors,
    store_batch,
)
from app.enrolment.vectors.npy_file import NpyFile
from app.enrolment.vectors.row_table import NO_FIELDS, RowTable, VectorRow
from app.errors import Invalid, NotFound
from app.galleries.external_descriptors import get_external
from app.publishing import pointers
from ml.descriptors.external import External
from ml.errors import Corrupt, Unavailable
from ml.types import Rows
from workers.context import Interrupted, JobContext
from workers.importing.row_batches import take_rows

log = logging.getLogger("likeness.import")

MAX_BATCH_ROWS, MAX_BATCH_BYTES = 65_536, 16 * 2**20


@dataclass(frozen=True)
class _Batch:
    """Rows of the file. start: the number of the first; records: those that can be stored; refused: position -> reason

    rows: (n, dim) as they are stored
    """

    start: int
    rows: Rows
    records: Sequence[VectorRecord]
    refused: dict[int, str]

    @property
    def end(self) -> int:
        return self.start + len(self.rows)


class _PointersMovedError(Exception):
    """A pointer moved between the preparation and the lock."""


@dataclass(frozen=True)
class VectorImport:
    """One run of an import. table: None if the vectors come without one"""

    context: JobContext
    collection: str
    vectors: NpyFile
    table: RowTable | None

    def iterate_batches(self) -> Iterator[int]:
        """Enrol the rows that are left, and yield the number of rows that are done after each batch.

        Raises Interrupted, NotFound (the collection), and ml.Corrupt or ml.Unavailable if a champion cannot be loaded.
        """
        with reading(self.context.resources.database) as session:
            job = session.get_one(Job, self.context.job_id)
            start = job.done + job.failed
            external = get_external(session, get_collection(session, self.collection))
        assert external is not None, "the API accepts vectors for no other collection"
        with closing(_read_ahead(self._iterate_prepared(external, start))) as batches:
            for batch in batches:
                self.context.check()
                self._store(batch)
                yield batch.end

    def _iterate_prepared(self, external: External, start: int) -> Iterator[_Batch]:
        """Yield the rows from `start` on in batches, checked."""
        rows, first, count = self.vectors.read_rows(), start, self.vectors.count
        size = max(1, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // (4 * self.vectors.dim)))
        fields = repeat(NO_FIELDS) if self.table is None else self.table.iterate_rows(start)
        while first < count:
            stated = take_rows(fields, min(size, count - first), _count_characters)
            if not stated:
                raise Invalid(f"the table has ended at row {first:,}: it was altered", code="InvalidVectors")
            part = np.asarray(rows[first : first + len(stated)], np.float32)
            yield _prepare(external, first, part, stated)
            first += len(stated)

    def _store(self, batch: _Batch) -> None:
        """Store a batch. It is embedded before the collection is locked, and again if a pointer has moved meanwhile."""
        embeddings: Embeddings = {}
        while True:
            try:
                with writing(self.context.resources.database) as session:
                    self._store_locked(session, batch, embeddings)
                self.context.resources.notifier.notify("changes")
                return
            except _PointersMovedError:
                embeddings = self._embed(batch.rows)

    def _embed(self, rows: Rows) -> Embeddings:
        """Embed (n, dim) rows by every model of the collection. A champion that cannot be loaded raises its error."""
        resources = self.context.resources
        with reading(resources.database) as session:
            models, champions = self._list_models(session), list_champions(session, self.collection)
            own = get_collection(session, self.collection).external_model
        embeddings: Embeddings = {}
        for model, task in sorted(models):
            try:
                embeddings[model, task] = rows if model == own else resources.models.get(model).embed(rows, task)
            except (Corrupt, Unavailable, NotFound) as error:
                if (model, task) in champions:
                    raise
                embeddings[model, task] = np.empty((0, 0), np.float32)
                log.warning("model.left_out collection=%s model=%s error=%s", self.collection, model, error)
        return embeddings

    def _list_models(self, session: Session) -> set[tuple[str, str]]:
        """Return the models that embed new faces, and the one whose embeddings are the vectors, each with its task."""
        own = get_collection(session, self.collection).external_model
        assert own is not None
        return list_models_to_embed(session, self.collection) | {(own, BUILT_IN_TASK)}

    def _store_locked(self, session: Session, batch: _Batch, embeddings: Embeddings) -> None:
        """Store the rows and the progress. Raises Interrupted if another run was faster, _PointersMovedError."""
        resources = self.context.resources
        collection = pointers.lock_collection(session, self.collection)
        job = session.get_one(Job, self.context.job_id, with_for_update=True, populate_existing=True)
        if job.cancel or job.done + job.failed != batch.start:
            raise Interrupted
        if not self._list_models(session) <= embeddings.keys():
            raise _PointersMovedError
        usable = {key: rows for key, rows in embeddings.items() if len(rows) == len(batch.rows)}
        needs_consent = resources.settings.require_consent
        with large_cache(session):
            outcome = store_batch(session, collection, batch.records, usable, needs_consent)
        _record_outcome(session, job, batch, outcome)


def _count_characters(row: VectorRow | str) -> int:
    """Return how many characters the row of a table adds to a batch; the reason why one is refused adds none."""
    if isinstance(row, str) or row is NO_FIELDS:
        return 0
    names = sum(len(name) for name in (row.subject, row.external_id, row.external_image_id) if name is not None)
    return names + (len(json.dumps(row.metadata)) if row.metadata else 0)


def _read_ahead(batches: Iterator[_Batch]) -> Generator[_Batch]:
    """Yield the same batches, and prepare the next one in a thread meanwhile: the database does not hold the GIL."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as thread:
        waiting = thread.submit(next, batches, None)
        while (batch := waiting.result()) is not None:
            waiting = thread.submit(next, batches, None)
            yield batch


def _prepare(external: External, start: int, part: Rows, stated: Sequence[VectorRow | str]) -> _Batch:
    """Check (n, dim) rows and what the table states of each."""
    faults = external.find_fault(part)
    is_sound = np.array([fault is None for fault in faults], np.bool_)
    rows = external.normalise(np.where(is_sound[:, None], part, np.float32(0)))
    refused: dict[int, str] = {}
    records = []
    for position, (image_id, fault, row) in enumerate(zip(identify_vectors(rows), faults, stated, strict=True)):
        if fault is not None or isinstance(row, str):
            refused[position] = str(fault or row)
        else:
            records.append(VectorRecord(position, image_id, row))
    return _Batch(start, rows, records, refused)


def _record_outcome(session: Session, job: Job, batch: _Batch, outcome: BatchOutcome) -> None:
    """Store the progress, and an item for each row that was refused."""
    refused = batch.refused | outcome.refused
    items: list[dict[str, Any]] = [
        {
            "job_id": job.id,
            "number": batch.start + position,
            "name": f"row {batch.start + position}",
            "state": "failed",
            "detail": {"reasons": [reason]},
        }
        for position, reason in sorted(refused.items())
    ]
    if items:
        session.execute(insert(JobItem), items)
    job.done += outcome.enrolled
    job.failed += len(items)
    job.tries = 1  # the import makes progress: an earlier death of a worker no longer counts
