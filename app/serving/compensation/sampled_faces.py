"""Sample the faces of each source of a collection, with their embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Embedding, Face, Subject, now
from app.galleries.retention import may_be_used
from app.serving.index_builder import IndexKey
from app.storage.embedding_codec import decode_embeddings
from ml.compensation import MIN_FACES_TO_CORRECT, NO_SOURCE, Sources
from ml.types import Ids, Rows

MAX_FACES_PER_SOURCE = 5_000
SAMPLE_BYTES = 64 * 2**20
FACES_PER_QUERY = 1_000


@dataclass(frozen=True, eq=False)
class SampledFaces:
    """Embeddings as the model makes them. people: (N,) the subject's pk, -1 without one; pks: (N,) of the faces"""

    rows: Rows
    sources: Sources
    people: Ids
    pks: Ids


def sample_faces(session: Session, key: IndexKey, dim: int, sources: Sequence[str]) -> SampledFaces:
    """Sample the faces of each source that have an embedding and may be used: see `may_be_used`."""
    limit = min(MAX_FACES_PER_SOURCE, SAMPLE_BYTES // (4 * dim * max(1, len(sources))))
    samples = [_sample_source(session, key, source, max(MIN_FACES_TO_CORRECT, limit)) for source in sources]
    faces = [face for sample in samples for face in sample]
    return SampledFaces(
        decode_embeddings([vector for _, vector, _ in faces], dim),
        np.repeat(np.array(sources, np.str_), [len(sample) for sample in samples]),
        np.array([-1 if subject is None else subject for _, _, subject in faces], np.int64),
        np.array([pk for pk, _, _ in faces], np.int64),
    )


def _sample_source(session: Session, key: IndexKey, source: str, limit: int) -> list[tuple[int, bytes, int | None]]:
    """Return the pk, the embedding and the subject's pk of at most `limit` faces, the same each time."""
    of_source = Face.source.is_(None) if source == NO_SOURCE else Face.source == source
    usable = select(Face.pk).outerjoin(Subject, Subject.pk == Face.subject_pk).where(may_be_used(now()))
    pks = session.scalars(usable.where(Face.collection_id == key.collection, of_source).order_by(Face.pk)).all()
    chosen = np.sort(np.random.default_rng(0).permutation(np.array(pks))[:limit]).tolist()
    query = select(Face.pk, Embedding.vector, Face.subject_pk).join(Face, Face.pk == Embedding.face_pk)
    query = query.where(*key.row_conditions).order_by(Face.pk)
    sample: list[tuple[int, bytes, int | None]] = []
    for start in range(0, len(chosen), FACES_PER_QUERY):
        rows = session.execute(query.where(Face.pk.in_(chosen[start : start + FACES_PER_QUERY])))
        sample += [(pk, vector, subject) for pk, vector, subject in rows]
    return sample
