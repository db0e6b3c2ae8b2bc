"""Faces whose stored crops are damaged: mark them, so that jobs leave them out, and list them."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, exists, func, select, tuple_
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import DamagedFace, Embedding, Face
from app.errors import AppError
from app.resources import Resources
from app.storage.stored_faces import DamagedCrop, StoredFace

MAX_DAMAGED_SHARE = 0.05
MIN_DAMAGED_TO_REFUSE = 10
"""Up to this many damaged faces are left out of any collection, however small."""
MAX_LISTED_FACES = 100
FACES_PER_QUERY = 200

log = logging.getLogger("likeness.storage")


def is_intact() -> ColumnElement[bool]:
    """Return the condition that a face has no damaged crop, for a query of faces."""
    return ~exists().where(DamagedFace.face_pk == Face.pk)


def count_without_embedding(
    collection: ColumnElement[str], model: ColumnElement[str], task: ColumnElement[str]
) -> ScalarSelect[int]:
    """Return the number of damaged faces of a collection that a model could not embed, for a query."""
    embedded = select(Embedding.face_pk).where(Embedding.face_pk == DamagedFace.face_pk)
    of_model = embedded.where(Embedding.model_id == model, Embedding.task == task)
    damaged = select(func.count()).select_from(DamagedFace).where(DamagedFace.collection_id == collection)
    return damaged.where(of_model.correlate(DamagedFace).scalar_subquery().is_(None)).scalar_subquery()


def mark_damaged_faces(resources: Resources, crops: Sequence[DamagedCrop]) -> int:
    """Mark the faces of these crops, set their files aside, and return how many are newly marked.

    Faces that were erased meanwhile are ignored. With its file set aside, a crop is written anew when its photo is
    enrolled again.
    Raises AppError (TooManyDamaged) if more than MAX_DAMAGED_SHARE of a collection would be marked; none is then.
    """
    by_key = {(crop.face.collection_id, crop.face.image_id, crop.face.number): crop for crop in crops}
    with writing(resources.database) as session:
        keys = list(by_key)
        parts = (keys[start : start + FACES_PER_QUERY] for start in range(0, len(keys), FACES_PER_QUERY))
        faces = [face for part in parts for face in _read_unmarked(session, part)]
        for collection, count in Counter(face.collection_id for face in faces).items():
            _check_share(session, collection, count)
        for face in faces:
            crop = by_key[face.collection_id, face.image_id, face.number]
            session.add(
                DamagedFace(face_pk=face.pk, collection_id=face.collection_id, file=crop.file, reason=crop.reason[:255])
            )
            log.warning("face.damaged collection=%s file=%s reason=%s", face.collection_id, crop.file, crop.reason)
    for face in faces:
        crop = by_key[face.collection_id, face.image_id, face.number]
        resources.blobs.quarantine(face.collection_id, crop.file)
    return len(faces)


def _read_unmarked(session: Session, keys: Sequence[tuple[str, str, int]]) -> Iterable[Face]:
    is_named = tuple_(Face.collection_id, Face.image_id, Face.number).in_(keys)
    return session.scalars(select(Face).where(is_named, is_intact()))


def were_marked_before(session: Session, faces: Iterable[StoredFace], at: float) -> bool:
    """Whether all of these faces exist and had been marked before that time, in seconds since 1970."""
    keys = sorted({(face.collection_id, face.image_id, face.number) for face in faces})
    parts = (keys[start : start + FACES_PER_QUERY] for start in range(0, len(keys), FACES_PER_QUERY))
    key = tuple_(Face.collection_id, Face.image_id, Face.number)
    marked = select(func.count()).select_from(Face).join(DamagedFace, DamagedFace.face_pk == Face.pk)
    marked = marked.where(DamagedFace.found_at < at)
    return sum(session.scalar(marked.where(key.in_(part))) or 0 for part in parts) == len(keys)


def _check_share(session: Session, collection: str, newly_damaged: int) -> None:
    damaged = newly_damaged + count_damaged_faces(session).get(collection, 0)
    total = session.scalar(select(func.count()).select_from(Face).where(Face.collection_id == collection)) or 0
    if damaged > max(MIN_DAMAGED_TO_REFUSE, MAX_DAMAGED_SHARE * total):
        raise AppError(
            f"the stored crops of {damaged} of {total} faces of collection {collection!r} are damaged or missing, more "
            f"than {MAX_DAMAGED_SHARE:.0%}; check that the folder of photos and crops is complete and its disk sound, "
            "restore it from a backup, and start the job again",
            code="TooManyDamaged",
        )


def count_damaged_faces(session: Session) -> dict[str, int]:
    """Return collection -> the number of its damaged faces, of those that have any."""
    counts = select(DamagedFace.collection_id, func.count()).group_by(DamagedFace.collection_id)
    return dict(session.execute(counts).all())


def list_damaged_faces(session: Session, collections: Sequence[str]) -> tuple[int, list[str]]:
    """Return how many faces of these collections are damaged, and the ids of the first ones."""
    rows = select(Face.face_id).join(DamagedFace, DamagedFace.face_pk == Face.pk)
    of_collections = DamagedFace.collection_id.in_(collections)
    listed = list(session.scalars(rows.where(of_collections).order_by(Face.pk).limit(MAX_LISTED_FACES)))
    counts = count_damaged_faces(session)
    return sum(counts.get(collection, 0) for collection in collections), listed


def describe_damaged_faces(resources: Resources, collections: Sequence[str]) -> dict[str, Any]:
    """Return the entry `damaged_faces` of a job's result: {"count", "face_ids"}; empty if no face is damaged."""
    with reading(resources.database) as session:
        count, face_ids = list_damaged_faces(session, collections)
    return {"damaged_faces": {"count": count, "face_ids": face_ids}} if count else {}
