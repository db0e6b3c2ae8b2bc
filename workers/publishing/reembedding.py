"""Embed every face of a collection with a model, from the stored crops, while another model serves."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from app.db.session import reading, writing
from app.db.tables import Face, now
from app.enrolment.bulk_rows import insert_embeddings
from app.galleries.learned_collections import list_learned_collections
from app.publishing.pointers import select_faces_without_embedding
from app.storage.stored_faces import CropsDamaged
from ml.model import Model
from ml.types import Rows
from workers.context import JobContext
from workers.damaged_faces import mark_or_raise
from workers.embedding import draw_sample, embed_batch, embed_describable, read_faces
from workers.imported_vectors import choose_batch_size

FACES_PER_BATCH = 512


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
            faces = read_faces(session, wanted)
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


def store_samples(context: JobContext, model: Model, tasks: Sequence[str], collection: str) -> None:
    """Embed drawn faces of the other collections that a model has learned from, if they have no embedding by it.

    The people of this collection are compared with them, now and as it grows: see `estimate_seen_share`. Faces that
    cannot be described are left out. Raises Conflict, Interrupted.
    """
    with reading(context.resources.database) as session:
        sources = list_learned_collections(session, model)
    for source in sources:
        if source.name == collection:
            continue
        context.check()
        with reading(context.resources.database) as session:
            sample = draw_sample(session, source.match_faces(session, model.recipe.external))
            missing = select_faces_without_embedding(source.name, model.id, tasks)
            faces = read_faces(session, missing.where(Face.pk.in_(sample)))
        faces, vectors = embed_describable(context, model, tasks, faces)
        with writing(context.resources.database) as session:
            store_embeddings(session, model.id, vectors, [face.pk for face in faces])


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
