"""Read the faces that an atlas shows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.db.lookups import get_collection
from app.db.session import reading, snapshot
from app.db.tables import Embedding, Face
from app.publishing.pointers import get_deployment
from app.resources import Resources
from app.serving import index_builder
from app.serving.compensation.store import Compensation, read_compensation
from app.serving.index_builder import EmbeddingBatch, IndexKey
from ml.distances import Distance
from ml.types import Ids, Rows

FACES_PER_QUERY = 1_000
RANK_FACTOR = 2_654_435_761
"""Knuth's multiplier: odd, so that no two of 2^32 consecutive numbers get the same rank."""


@dataclass(frozen=True, eq=False)
class AtlasGallery:
    """The faces of a deployment, with their embeddings as its champion compares them.

    version: of the deployment; change: the collection's last change; pks: (N,) of the faces with an embedding, rising
    """

    resources: Resources
    key: IndexKey
    dim: int
    metric: Distance
    compensation: Compensation
    version: int
    change: int
    pks: Ids

    def iterate(self, *where: ColumnElement[bool]) -> Iterator[EmbeddingBatch]:
        """Yield batches of (n,) pks with their (n, dim) embeddings. where: conditions on faces"""
        with reading(self.resources.database) as session:
            yield from index_builder.read_embeddings(session, self.key, self.dim, self.compensation, *where)

    def read(self, pks: Ids) -> tuple[Ids, Rows]:
        """Read the embeddings of these faces, (n,) in any order; faces deleted meanwhile are left out.

        Returns pks, rising, and rows.
        """
        batches = [
            batch
            for start in range(0, len(pks), FACES_PER_QUERY)
            for batch in self.iterate(Face.pk.in_(pks[start : start + FACES_PER_QUERY].tolist()))
        ]
        read = np.concatenate([np.empty(0, np.int64), *(batch[0] for batch in batches)])
        rows = np.concatenate([np.empty((0, self.dim), np.float32), *(batch[1] for batch in batches)])
        order = np.argsort(read)
        return read[order], rows[order]


def read_atlas_gallery(resources: Resources, collection_id: str, task: str) -> AtlasGallery:
    """Read what an atlas of the deployment's champion shows at one moment. Raises NotFound, ml.Corrupt."""
    with snapshot(resources.database) as session:
        collection = get_collection(session, collection_id)
        deployment = get_deployment(session, collection_id, task)
        model = resources.models.get(deployment.champion)
        compensation = read_compensation(session, collection_id, task, model.id)
        key = IndexKey(collection_id, task, model.id, collection.created_at, compensation.version)
        dim = index_builder.find_embedding_size(model, task)
        pks = _read_pks(session, key)
        return AtlasGallery(resources, key, dim, model.metric, compensation, deployment.version, collection.change, pks)


def rank_for_display(pks: Ids) -> Ids:
    """Return the display rank of (n,) faces: numbers that mix them, so that the first ones are an even sample."""
    ranks: Ids = (pks.astype(np.uint64) * np.uint64(RANK_FACTOR) % np.uint64(2**32)).astype(np.int64)
    return ranks


def _read_pks(session: Session, key: IndexKey) -> Ids:
    embedded = select(Embedding.face_pk).join(Face, Face.pk == Embedding.face_pk).where(*key.row_conditions)
    return np.sort(np.array(session.scalars(embedded).all(), np.int64))
