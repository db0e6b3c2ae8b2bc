"""From rows to an index, and what is new since: reads of one snapshot, in batches of bounded size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Row, func, select
from sqlalchemy.orm import Session

from app.db.tables import Collection, Embedding, Face, Removal
from ml import indexes
from ml.distances import Distance
from ml.indexes import MAX_SAMPLES_PER_CELL, Device, default_cell_count
from ml.indexes.base import Index
from ml.model import Model
from ml.types import Ids, Rows

BATCH_BYTES = 8 * 2**20

Batch = tuple[Ids, Rows]


@dataclass(frozen=True)
class Place:
    """A generation at work: for a task, in a collection. `born` tells a collection from one that had its id before."""

    collection: str
    task: str
    generation: str
    born: float

    @property
    def holds(self) -> tuple[ColumnElement[bool], ...]:
        """What a row of embeddings joined with faces must meet to belong here."""
        return (
            Embedding.generation_id == self.generation,
            Embedding.task == self.task,
            Face.collection_id == self.collection,
        )


def width(generation: Model, task: str) -> int:
    """How many numbers an embedding of this task has."""
    return int(generation.embed(np.zeros((1, generation.recipe.dim), np.float32), task).shape[1])


def change(session: Session, place: Place) -> int | None:
    """The collection's last change; None where it is gone."""
    at = select(Collection.change).where(Collection.id == place.collection, Collection.created_at == place.born)
    return session.scalar(at)


def counts(session: Session, place: Place) -> tuple[int, int]:
    """Rows and vectors: the faces of the collection, and those that have their place here."""
    faces = select(func.count()).select_from(Face).where(Face.collection_id == place.collection)
    vectors = select(func.count()).select_from(Embedding).join(Face, Face.pk == Embedding.face_pk)
    return session.scalar(faces) or 0, session.scalar(vectors.where(*place.holds)) or 0


def vectors(session: Session, place: Place, dim: int, *where: ColumnElement[bool]) -> Iterator[Batch]:
    """(n,) face pks and their (n, dim) embeddings, batch after batch."""
    chosen = select(Embedding.face_pk, Embedding.vector).join(Face, Face.pk == Embedding.face_pk)
    chosen = chosen.where(*place.holds, *where)
    size = max(1, min(4096, BATCH_BYTES // (4 * dim)))
    for rows in session.execute(chosen, execution_options={"yield_per": size}).partitions():
        yield _decoded(rows, dim)


def added(session: Session, place: Place, dim: int, since: int) -> Iterator[Batch]:
    """What was enrolled, or changed, after that change."""
    return vectors(session, place, dim, Face.change > since)


def removed(session: Session, place: Place, since: int) -> Ids:
    """Which faces were removed after that change."""
    gone = select(Removal.face_pk).where(Removal.collection_id == place.collection, Removal.change > since)
    return np.array(session.scalars(gone).all(), np.int64)


def build(
    session: Session, place: Place, dim: int, metric: Distance, device: Device, per_cell: int = MAX_SAMPLES_PER_CELL
) -> Index:
    """An index of all that the tables hold for this place.

    The rows stream through: beside the index itself only a batch, and the sample that finds its cells, of a large
    gallery at most half of it, are held.
    """
    pks = select(Embedding.face_pk).join(Face, Face.pk == Embedding.face_pk).where(*place.holds)
    ids = np.sort(np.array(session.scalars(pks).all(), np.int64))
    cells = default_cell_count(len(ids))
    most = per_cell * cells if cells > 1 else 0
    sample = _sample(ids, min(most, max(most, len(ids)) // 2))
    index = indexes.build(sample, _gather(session, place, dim, sample), metric, p=cells, device=device)
    if len(index) < len(ids):
        for found, rows in vectors(session, place, dim):
            new = ~_among(found, sample)[0]
            index.add(found[new], rows[new])
    index.finish_build()
    return index


def _sample(ids: Ids, wanted: int) -> Ids:
    """Those that k-means looks at; a flat index needs none."""
    if wanted >= len(ids):
        return ids
    return np.sort(np.random.default_rng(0).choice(ids, wanted, replace=False))


def _gather(session: Session, place: Place, dim: int, sample: Ids) -> Rows:
    rows = np.empty((len(sample), dim), np.float32)
    for found, batch in vectors(session, place, dim) if len(sample) else ():
        there, at = _among(found, sample)
        rows[at[there]] = batch[there]
    return rows


def _among(found: Ids, sample: Ids) -> tuple[NDArray[np.bool_], Ids]:
    """Which of these are in the sorted sample, and where."""
    if not len(sample):
        return np.zeros(len(found), np.bool_), np.zeros(len(found), np.int64)
    at = np.minimum(np.searchsorted(sample, found), len(sample) - 1)
    return sample[at] == found, at


def _decoded(rows: Sequence[Row[int, bytes]], dim: int) -> Batch:
    pks, blobs = zip(*rows, strict=True)
    return np.array(pks, np.int64), np.frombuffer(b"".join(blobs), "<f4").reshape(len(pks), dim)
