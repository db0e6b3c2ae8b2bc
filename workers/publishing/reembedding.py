"""Embed every face of a collection with a model, from the stored crops, while another model serves."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Face, now
from app.enrolment.bulk_rows import insert_embeddings
from app.galleries.learned_collections import list_learned_changes
from app.publishing.pointers import select_faces_without_embedding
from app.serving.index_builder import find_embedding_size
from app.storage.stored_faces import CropsDamaged, StoredFace
from ml.model import Model
from ml.types import Rows
from workers.context import JobContext
from workers.damaged_faces import mark_or_raise
from workers.description import describe_faces, describe_in_batches
from workers.imported_vectors import choose_batch_size

FACES_PER_BATCH = 512
SAMPLED_FACES = 2_000


class FaceRow(NamedTuple):
    """What names the files and rows of a face. See `StoredFace`."""

    pk: int
    collection_id: str
    image_id: str
    number: int


FACE_COLUMNS = Face.pk, Face.collection_id, Face.image_id, Face.number


def reembed_collection(context: JobContext, collection: str, model: Model, tasks: Sequence[str]) -> None:
    """Embed the faces that have no embedding by this model yet. Each batch is stored by itself, so that a run can stop.

    Faces whose crops are damaged get none. Raises AppError (TooManyDamaged), Interrupted.
    """
    total, done, after = _count_faces(context, collection), 0, 0
    size = FACES_PER_BATCH if model.recipe.external is None else choose_batch_size(model.recipe.dim)
    wanted = select_faces_without_embedding(collection, model.id, tasks)
    while pks := _list_pks(context, wanted, after):  # of all, since SQLite would sort them for each batch
        for start in range(0, len(pks), size):
            done = _embed_some(context, model, tasks, wanted.where(Face.pk.in_(pks[start : start + size])), done, total)
        after = pks[-1]


def _list_pks(context: JobContext, wanted: Select[Face], after: int) -> list[int]:
    with reading(context.resources.database) as session:
        return list(session.scalars(wanted.with_only_columns(Face.pk).where(Face.pk > after)))


def _embed_some(
    context: JobContext, model: Model, tasks: Sequence[str], wanted: Select[Face], done: int, total: int
) -> int:
    """Embed and store some faces. done, total: the progress before; returns how many are done."""
    while True:
        read_at = now()
        with reading(context.resources.database) as session:
            faces = _read_faces(session, wanted)
        if not faces:
            return done
        try:
            vectors = embed_batch(context, model, tasks, faces)
        except CropsDamaged as damage:  # or faces were erased meanwhile: embed the others
            mark_or_raise(context.resources, damage, read_at)
            continue
        with writing(context.resources.database) as session:
            store_embeddings(session, model.id, vectors, [face.pk for face in faces])
            done += len(faces)
            context.write_progress(session, done, max(total, done))
        return done


def embed_sample(context: JobContext, model: Model, task: str, collection: str) -> Rows:
    """Return (n, d) embeddings of drawn faces of a collection, SAMPLED_FACES at most, without storing them.

    Faces whose crops are damaged, or that are erased meanwhile, are left out. Raises Conflict, Interrupted.
    """
    with reading(context.resources.database) as session:
        faces = _read_faces(session, select(Face).where(Face.pk.in_(_draw_sample(session, collection))))
    return _embed_undamaged(context, model, [task], faces)[1][task]


def store_samples(context: JobContext, model: Model, tasks: Sequence[str], collection: str) -> None:
    """Embed drawn faces of the other collections that a model has learned from, if they have no embedding by it.

    The people of this collection are compared with them, now and as it grows: see `estimate_seen_share`. Faces whose
    crops are damaged are left out. Raises Conflict, Interrupted.
    """
    for source in list_learned_changes(model.provenance):
        if source == collection:
            continue
        context.check()
        with reading(context.resources.database) as session:
            missing = select_faces_without_embedding(source, model.id, tasks)
            faces = _read_faces(session, missing.where(Face.pk.in_(_draw_sample(session, source))))
        faces, vectors = _embed_undamaged(context, model, tasks, faces)
        with writing(context.resources.database) as session:
            store_embeddings(session, model.id, vectors, [face.pk for face in faces])


def _draw_sample(session: Session, collection: str) -> list[int]:
    pks = np.array(list(session.scalars(select(Face.pk).where(Face.collection_id == collection))), np.int64)
    sample: list[int] = np.random.default_rng(0).permutation(np.sort(pks))[:SAMPLED_FACES].tolist()
    return sample


def _read_faces(session: Session, wanted: Select[Face]) -> list[FaceRow]:
    return list(map(FaceRow._make, session.execute(wanted.with_only_columns(*FACE_COLUMNS))))


def _embed_undamaged(
    context: JobContext, model: Model, tasks: Sequence[str], faces: list[FaceRow]
) -> tuple[list[FaceRow], dict[str, Rows]]:
    """Return the n faces whose crops are sound, and their (n, d) embeddings for each task."""
    while faces:
        try:
            return faces, embed_batch(context, model, tasks, faces)
        except CropsDamaged as damage:
            damaged = {crop.face.pk for crop in damage.crops}
            faces = [face for face in faces if face.pk not in damaged]
    return [], {task: np.empty((0, find_embedding_size(model, task)), np.float32) for task in tasks}


def embed_batch(
    context: JobContext, model: Model, tasks: Sequence[str], faces: Sequence[StoredFace]
) -> dict[str, Rows]:
    """Return (N, d) embeddings of these faces for each task. Raises CropsDamaged, Interrupted."""
    if model.recipe.external is None:
        rows = describe_faces(context, model.recipe, faces)
    else:
        [rows] = describe_in_batches(context, model.recipe, faces, len(faces))  # as they were read, without a copy
    return {task: model.embed(rows, task) for task in tasks}


def store_embeddings(session: Session, model: str, vectors: Mapping[str, Rows], pks: Sequence[int]) -> None:
    """Store the missing embeddings of the faces that still exist. vectors: task -> (N, d); pks: of the N faces."""
    existing = select(Face.pk).where(Face.pk.in_(pks)).with_for_update(read=True, key_share=True)
    existing_pks = set(session.scalars(existing))
    kept = [position for position, pk in enumerate(pks) if pk in existing_pks]
    for task, rows in vectors.items():
        insert_embeddings(session, model, task, [pks[position] for position in kept], rows[kept])


def _count_faces(context: JobContext, collection: str) -> int:
    with reading(context.resources.database) as session:
        return session.scalar(select(func.count()).where(Face.collection_id == collection)) or 0
