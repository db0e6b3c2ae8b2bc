"""Whom the ids of an index stand for."""

import base64
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from app.db.tables import Face, Subject
from app.errors import NotFound
from app.search.filters import Filter
from app.storage.blob_store import Blobs
from ml.types import CropKind, Ids

AT_ONCE = 10_000
FACES, SUBJECTS = Face.__table__.c, Subject.__table__.c  # plain columns: thousands of rows need no objects around them
TOLD = (
    select(
        FACES.pk,
        FACES.face_id,
        FACES.role,
        FACES.image_id,
        FACES.number,
        FACES.subject_pk,
        SUBJECTS.id,
        SUBJECTS.external_id,
    )
    .select_from(Face.__table__.outerjoin(Subject.__table__, SUBJECTS.pk == FACES.subject_pk))
    .where(FACES.pk.in_(bindparam("pks", expanding=True)))
)


class Named(NamedTuple):
    """What an answer tells of an enrolled face."""

    pk: int
    face_id: str
    role: str
    image_id: str
    number: int
    subject_pk: int | None
    subject: str | None
    external_id: str | None

    @property
    def is_named(self) -> bool:
        """Whether it belongs to an enrolled person; a distractor belongs to nobody."""
        return self.subject_pk is not None and self.role != "distractor"

    @property
    def owner(self) -> int:
        """Whose face it is, as a number: even for a person; odd, its own, for a face of nobody known."""
        return 2 * self.subject_pk if self.subject_pk is not None and self.is_named else 2 * self.pk + 1


def names(session: Session, pks: Sequence[int]) -> dict[int, Named]:
    """Those of these faces that are still there. They are of one collection, whose index gave them; to ask for it
    too would lead SQLite to walk through all of it."""
    found: dict[int, Named] = {}
    for start in range(0, len(pks), AT_ONCE):
        part = session.connection().execute(TOLD, {"pks": pks[start : start + AT_ONCE]})
        found.update((row[0], Named._make(row)) for row in part)
    return found


def allowed(session: Session, collection: str, wanted: Filter | None) -> Ids | None:
    """The faces that a filter lets through; None: all."""
    if wanted is None:
        return None
    chosen = select(Face.pk).outerjoin(Subject, Subject.pk == Face.subject_pk).where(Face.collection_id == collection)
    chosen = chosen.where(*wanted.clauses(session.get_bind().dialect.name))
    return np.array(session.scalars(chosen).all(), np.int64)


def face(session: Session, collection: str, face_id: str) -> Face:
    """Raises NotFound."""
    found = session.scalar(select(Face).where(Face.collection_id == collection, Face.face_id == face_id))
    if found is None:
        raise NotFound(f"no face {face_id!r} in collection {collection!r}")
    return found


def crop(blobs: Blobs, collection: str, named: Named, kind: CropKind) -> str | None:
    """The stored crop as base64 PNG; None where its file is gone."""
    try:
        return base64.b64encode(blobs.get(collection, Blobs.crop(named.image_id, named.number, kind))).decode()
    except NotFound:
        return None
