"""Where enrolled faces lie: their embeddings as they are kept."""

from collections.abc import Sequence

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.tables import Embedding
from app.errors import Busy
from app.search.naming import AT_ONCE
from app.serving.deployments import Serving
from ml.types import Rows


def found(session: Session, serving: Serving, pks: Sequence[int]) -> dict[int, bytes]:
    """Those of these faces that have a place for the serving's task and generation."""
    at = serving.held.place
    told = select(Embedding.face_pk, Embedding.vector)
    told = told.where(Embedding.generation_id == at.generation, Embedding.task == at.task)
    there: dict[int, bytes] = {}
    for start in range(0, len(pks), AT_ONCE):
        rows = session.execute(told.where(Embedding.face_pk.in_(pks[start : start + AT_ONCE])))
        there.update((row.face_pk, row.vector) for row in rows)
    return there


def stored(session: Session, serving: Serving, pks: Sequence[int]) -> Rows:
    """(n, dim): where these enrolled faces lie. Raises Busy where one has no place yet."""
    there = found(session, serving, pks)
    if len(there) < len(set(pks)):
        raise Busy(f"not embedded yet for model {serving.held.place.generation}; try again shortly")
    return rows_of([there[pk] for pk in pks], serving.index.dim)


def rows_of(vectors: Sequence[bytes], dim: int) -> Rows:
    """(n, dim)"""
    return np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), dim)
