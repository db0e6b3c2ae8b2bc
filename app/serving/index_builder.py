"""Build an index from the rows of embeddings, and read later changes, in batches of bounded size.

The rows of the table are as the model embeds them. An index holds them as its source compensation corrects them.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Executable, String, and_, bindparam, func, select
from sqlalchemy.orm import Session

from app.db.session import stream_raw_rows
from app.db.tables import Collection, Embedding, Face, Removal
from app.galleries.damaged_faces import count_without_embedding
from app.serving.compensation.store import NO_COMPENSATION, Compensation
from app.storage.embedding_codec import decode_embeddings
from ml import indexes
from ml.distances import Distance
from ml.indexes import MAX_SAMPLES_PER_CELL, Device, default_cell_count
from ml.indexes.base import Index
from ml.model import Model
from ml.types import Ids, Rows, Spec

log = logging.getLogger("likeness.engine")

BATCH_BYTES = 8 * 2**20

EmbeddingBatch = tuple[Ids, Rows]

COLLECTION, TASK, MODEL = (bindparam(name, type_=String) for name in ("collection", "task", "model"))
IS_EMBEDDING = and_(Embedding.model_id == MODEL, Embedding.task == TASK, Embedding.face_pk == Face.pk)
"""The condition of an outer join of faces with embeddings. With an inner join, SQLite reads the embeddings of all
collections under the model, once for each of them."""

# Statements that are made once take a quarter of the processor time: a start sends them for thousands of collections.
CHANGE_QUERY = select(Collection.change).where(
    Collection.id == COLLECTION, Collection.created_at == bindparam("created_at")
)
FACE_EMBEDDINGS = select(
    Face.pk, select(Embedding.vector).where(IS_EMBEDDING).correlate(Face).scalar_subquery(), Face.source
).where(Face.collection_id == COLLECTION)
"""Each embedding is looked up by its whole key. In a join, PostgreSQL may read all embeddings of the model for each
face, while it has no statistics of the rows that an import or a publication has just added."""
EMBEDDINGS_QUERY = FACE_EMBEDDINGS.order_by(Face.pk)
ADDED_EMBEDDINGS_QUERY = FACE_EMBEDDINGS.where(Face.change > bindparam("since"))
ROW_COUNTS_QUERY = select(
    func.count(Face.pk),
    func.count(select(Embedding.face_pk).where(IS_EMBEDDING).correlate(Face).scalar_subquery()),
    count_without_embedding(COLLECTION, MODEL, TASK),
).where(Face.collection_id == COLLECTION)


@dataclass(frozen=True)
class IndexKey:
    """What an index holds: the embeddings of a collection by one model for one task.

    collection_created_at tells a collection from an earlier one with the same id.
    compensation: the version of the source compensation that corrects its rows; 0: none
    """

    collection: str
    task: str
    model_id: str
    collection_created_at: float
    compensation: int = 0

    @property
    def row_conditions(self) -> tuple[ColumnElement[bool], ...]:
        """The conditions on embeddings joined with faces that select the rows of this index."""
        return (
            Embedding.model_id == self.model_id,
            Embedding.task == self.task,
            Face.collection_id == self.collection,
        )

    @property
    def params(self) -> dict[str, str]:
        """The parameters of the statements that select the rows of this index."""
        return {"collection": self.collection, "task": self.task, "model": self.model_id}


def find_embedding_size(model: Model, task: str) -> int:
    """Return the size of the model's embeddings for this task."""
    return int(model.embed(np.zeros((1, model.recipe.dim), np.float32), task).shape[1])


def choose_index(model: Model) -> Spec | None:
    """Return the index that a model names; None if it names none, or one that cannot search by its metric."""
    if model.index is not None and model.metric.faiss_metric is None:
        log.warning("index.unsuitable model=%s index=%s metric=%s", model.id, model.index.name, model.metric.label)
        return None
    return model.index


def read_change(session: Session, collection: str, created_at: float) -> int | None:
    """Return the number of the collection's last change; None if the collection was deleted."""
    return session.scalar(CHANGE_QUERY, {"collection": collection, "created_at": created_at})


def count_rows(session: Session, key: IndexKey) -> tuple[int, int]:
    """Return the number of faces in the collection, and of those that have an embedding for this index.

    Damaged faces without an embedding are not counted.
    """
    faces, vectors, damaged = session.execute(ROW_COUNTS_QUERY, key.params).one()
    return faces - damaged, vectors


def read_embeddings(
    session: Session, key: IndexKey, dim: int, compensation: Compensation, *where: ColumnElement[bool]
) -> Iterator[EmbeddingBatch]:
    """Yield batches of (n,) face pks with their corrected (n, dim) embeddings. where: further conditions"""
    chosen = EMBEDDINGS_QUERY.where(*where) if where else EMBEDDINGS_QUERY
    return _stream_embeddings(session, chosen, key.params, dim, compensation)


def read_added(
    session: Session, key: IndexKey, dim: int, compensation: Compensation, since: int
) -> Iterator[EmbeddingBatch]:
    """Yield the embeddings of faces that were enrolled or changed after that change."""
    return _stream_embeddings(session, ADDED_EMBEDDINGS_QUERY, key.params | {"since": since}, dim, compensation)


def _stream_embeddings(
    session: Session, chosen: Executable, params: Mapping[str, Any], dim: int, compensation: Compensation
) -> Iterator[EmbeddingBatch]:
    size, parts = max(1, min(4096, BATCH_BYTES // (4 * dim))), list[EmbeddingBatch]()
    for rows in stream_raw_rows(session, chosen, size, params):
        if embedded := [row for row in rows if row[1] is not None]:
            parts.append(_decode_batch(embedded, dim, compensation))
        if sum(len(pks) for pks, _ in parts) >= size:
            yield _join_batches(parts)
            parts = []
    if parts:
        yield _join_batches(parts)


def _join_batches(parts: Sequence[EmbeddingBatch]) -> EmbeddingBatch:
    return np.concatenate([pks for pks, _ in parts]), np.concatenate([rows for _, rows in parts])


def read_removed(session: Session, key: IndexKey, since: int) -> Ids:
    """Return the pks of the faces that were deleted after that change."""
    gone = select(Removal.face_pk).where(Removal.collection_id == key.collection, Removal.change > since)
    return np.array(session.scalars(gone).all(), np.int64)


def build_index(
    session: Session,
    key: IndexKey,
    dim: int,
    metric: Distance,
    device: Device,
    per_cell: int = MAX_SAMPLES_PER_CELL,
    compensation: Compensation = NO_COMPENSATION,
    chosen: Spec | None = None,
    folder: Path | None = None,
) -> Index:
    """Build an index of every embedding that the tables hold for this key.

    The rows are read once, and held until they are in the index. For an index that the model names, which may keep its
    rows in a file, they are read three times instead: besides the index, memory then holds one batch and the sample
    that k-means trains on, which is at most half of a large gallery.
    chosen: the index that the model names, see `choose_index`; folder: where it may keep a file
    """

    def read_batches() -> Iterator[EmbeddingBatch]:
        return read_embeddings(session, key, dim, compensation)

    first: Iterable[EmbeddingBatch]
    if chosen is None:
        first = held = deque(read_batches())
        second = _take_out(held)
        pks = [batch[0] for batch in held]
    else:
        first, second = read_batches(), read_batches()
        pks = [batch[0] for batch in read_batches()]
    ids = np.sort(np.concatenate([np.empty(0, np.int64), *pks]))
    return assemble_index(ids, first, second, dim, metric, device, per_cell, chosen, folder)


def _take_out(held: deque[EmbeddingBatch]) -> Iterator[EmbeddingBatch]:
    while held:
        yield held.popleft()


def assemble_index(
    ids: Ids,
    first: Iterable[EmbeddingBatch],
    second: Iterable[EmbeddingBatch],
    dim: int,
    metric: Distance,
    device: Device,
    per_cell: int = MAX_SAMPLES_PER_CELL,
    chosen: Spec | None = None,
    folder: Path | None = None,
) -> Index:
    """Build an index of all rows, which both `first` and `second` yield in batches.

    ids: (n,) rising, of all rows; see `build_index` for the others
    """
    cells = default_cell_count(len(ids))
    sample_size = per_cell * cells if cells > 1 else 0
    sample = _choose_sample(ids, min(sample_size, max(sample_size, len(ids)) // 2))
    sample, rows = _read_sample(first, dim, sample)
    name, further = (chosen.name, chosen.options) if chosen else (None, {})
    index = indexes.build(sample, rows, metric, name=name, p=cells, device=device, folder=folder, further=further)
    del rows
    if len(index) < len(ids):
        for pks_read, batch in second:
            new = ~_find_in_sample(pks_read, sample)[0]
            index.add(pks_read[new], batch[new])
    index.finish_build()
    return index


def _choose_sample(ids: Ids, size: int) -> Ids:
    """Return the sorted ids of the sample that k-means trains on."""
    if size == 0 or size >= len(ids):
        return ids[:size]
    return np.sort(np.random.default_rng(0).choice(ids, size, replace=False))


def _read_sample(batches: Iterable[EmbeddingBatch], dim: int, sample: Ids) -> EmbeddingBatch:
    """Return the rows of (n,) sorted ids, without those that the batches do not have any more."""
    rows, is_read = np.empty((len(sample), dim), np.float32), np.zeros(len(sample), np.bool_)
    for pks, batch in batches if len(sample) else ():
        in_sample, positions = _find_in_sample(pks, sample)
        rows[positions[in_sample]], is_read[positions[in_sample]] = batch[in_sample], True
    return (sample, rows) if is_read.all() else (sample[is_read], rows[is_read])


def _find_in_sample(pks: Ids, sample: Ids) -> tuple[NDArray[np.bool_], Ids]:
    """Return which of (n,) pks are in the sorted sample, and their positions in it."""
    if not len(sample):
        return np.zeros(len(pks), np.bool_), np.zeros(len(pks), np.int64)
    positions = np.minimum(np.searchsorted(sample, pks), len(sample) - 1)
    return sample[positions] == pks, positions


def _decode_batch(rows: Sequence[tuple[Any, ...]], dim: int, compensation: Compensation) -> EmbeddingBatch:
    pks, vectors, sources = zip(*rows, strict=True)
    return np.array(pks, np.int64), compensation.correct(decode_embeddings(vectors, dim), sources)
