"""Read the faces of collections into memory, and what has changed since."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import snapshot, stream_raw_rows
from app.db.tables import Face, Removal, Subject
from app.galleries.retention import find_end_of_use
from app.resources import Resources
from app.serving.faces.columns import DISTRACTOR, FaceColumns, SubjectColumns, SubjectName, encode_face_ids
from app.serving.faces.face_table import EMPTY, ChangedFace, FaceTable
from app.serving.faces.found_faces import EnrolledFace
from app.serving.index_builder import COLLECTION, read_change
from ml.types import Ids

FACES, SUBJECTS = Face.__table__.c, Subject.__table__.c  # plain columns: a million rows need no ORM objects
FACES_QUERY = select(FACES.pk, FACES.face_id, FACES.role, FACES.subject_pk).where(FACES.collection_id == COLLECTION)
SUBJECTS_QUERY = select(SUBJECTS.pk, SUBJECTS.id, SUBJECTS.external_id, SUBJECTS.consent, SUBJECTS.retain_until).where(
    SUBJECTS.collection_id == COLLECTION
)


class CollectionKey(NamedTuple):
    """A collection. created_at tells it from an earlier one with the same id."""

    id: str
    created_at: float


class FaceTables:
    """The face tables of the collections that this process serves."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self._tables: dict[CollectionKey, FaceTable] = {}

    def load(self, session: Session, key: CollectionKey) -> FaceTable:
        """Return the table of a collection, which takes seconds for a million faces the first time."""
        if key not in self._tables:
            self._tables.setdefault(key, load_table(session, key))
        return self._tables[key]

    def load_again(self, session: Session, key: CollectionKey) -> FaceTable:
        """Return the table of a collection as it is stored, whatever is known of it."""
        self._tables[key] = load_table(session, key)
        return self._tables[key]

    def read_newest(self, key: CollectionKey) -> FaceTable:
        """Return the table of a collection as of its last change, for a thread that is not the follower's."""
        with snapshot(self.resources.database) as session:
            return update_table(session, key, self._tables.get(key) or load_table(session, key))

    def bring_to(self, key: CollectionKey, change: int) -> FaceTable:
        """Return the table of a collection as of this change or a later one. Without a change, it has no faces."""
        table = self._tables.get(key, EMPTY if change else replace(EMPTY, change=0))
        if table.change != change:
            if change < table.change:  # a change that was taken back: the database was restored
                del self._tables[key]
            with snapshot(self.resources.database) as session:
                table = update_table(session, key, self.load(session, key))
        self._tables[key] = table
        return table

    def forget(self, key: CollectionKey) -> None:
        """Forget a collection, whose table is read anew when it is next needed."""
        self._tables.pop(key, None)

    def drop_all_but(self, known: set[CollectionKey]) -> None:
        """Forget the other collections."""
        for key in self._tables.keys() - known:
            del self._tables[key]


def load_table(session: Session, key: CollectionKey) -> FaceTable:
    """Read all faces of a collection."""
    change = read_change(session, *key)
    return EMPTY if change is None else FaceTable(change, _read_columns(session, key.id))


def update_table(session: Session, key: CollectionKey, table: FaceTable) -> FaceTable:
    """Read the faces that were enrolled, changed or deleted since the last change of a table."""
    change = read_change(session, *key)
    if change is None or change == table.change:
        return table  # the next step drops the table of a deleted collection
    removed = select(Removal.face_pk).where(Removal.collection_id == key.id, Removal.change > table.change)
    of_face = FACES.pk, FACES.face_id, FACES.role, FACES.subject_pk
    of_subject = SUBJECTS.id, SUBJECTS.external_id, SUBJECTS.consent, SUBJECTS.retain_until
    changed = select(*of_face, *of_subject).outerjoin(Subject.__table__, SUBJECTS.pk == FACES.subject_pk)
    changed = changed.where(FACES.collection_id == key.id, FACES.change > table.change)
    faces = [_make_changed(row) for rows in stream_raw_rows(session, changed) for row in rows]
    return table.update(faces, session.connection().scalars(removed).all(), change)


def _make_changed(row: Any) -> ChangedFace:
    pk, face_id, role, subject_pk, subject, external_id, consent, retain_until = row
    face = EnrolledFace(pk, face_id, role, subject_pk, subject, external_id)
    return ChangedFace(face, find_end_of_use(None if consent is None else bool(consent), retain_until))


def _read_columns(session: Session, collection: str) -> FaceColumns:
    subjects = _read_subjects(session, collection)
    pks, face_ids = [np.empty(0, np.int64)], [EMPTY.columns.face_ids]
    distractors, subject_pks = [np.empty(0, np.bool_)], [np.empty(0, np.int64)]
    for rows in stream_raw_rows(session, FACES_QUERY, params={"collection": collection}):
        of_pk, of_id, of_role, of_subject = zip(*rows, strict=True)
        pks.append(_make_pks(of_pk))
        face_ids.append(encode_face_ids(of_id))
        distractors.append(np.array([role == DISTRACTOR for role in of_role], np.bool_))
        subject_pks.append(_make_pks([subject or 0 for subject in of_subject]))
    return FaceColumns.of(
        np.concatenate(pks),
        np.concatenate(face_ids),
        np.concatenate(distractors),
        np.concatenate(subject_pks),
        subjects,
    )


def _read_subjects(session: Session, collection: str) -> SubjectColumns:
    parts = [EMPTY.columns.subjects]
    for rows in stream_raw_rows(session, SUBJECTS_QUERY, params={"collection": collection}):
        pks, ids, external_ids, consents, retained = zip(*rows, strict=True)
        names = [SubjectName(*name).encode() for name in zip(ids, external_ids, strict=True)]
        given = (None if consent is None else bool(consent) for consent in consents)
        parts.append(SubjectColumns.of(pks, names, list(map(find_end_of_use, given, retained))))
    return SubjectColumns.join(parts)


def _make_pks(pks: Sequence[int]) -> Ids:
    return np.array(pks, np.int64)
