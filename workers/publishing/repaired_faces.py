"""Take faces back whose damaged crops can be read again: restored from a backup, or written by a new enrolment."""

import logging

from sqlalchemy import select

from app.db.session import reading, writing
from app.db.tables import DamagedFace, Embedding, Face
from app.enrolment.preparation import list_models_to_embed
from app.publishing.pointers import lock_collection
from app.storage.blob_store import Blobs
from app.storage.stored_faces import CropsDamaged, read_crops
from ml.aligners.similarity import CROP_SIZES_PIXELS
from ml.errors import LikenessError
from ml.types import Rows
from workers.context import JobContext
from workers.embedding import embed_batch
from workers.publishing import reembedding

log = logging.getLogger("likeness.storage")


def take_back_repaired_faces(context: JobContext, collection: str) -> int:
    """Embed the damaged faces whose crops can be read again, remove their marks, and return how many there were.

    Raises NotFound, Interrupted.
    """
    blobs = context.resources.blobs
    with reading(context.resources.database) as session:
        marked = select(Face, DamagedFace.file).join(DamagedFace, DamagedFace.face_pk == Face.pk)
        rows = session.execute(marked.where(DamagedFace.collection_id == collection).order_by(Face.pk)).all()
        session.expunge_all()
    repaired = 0
    for face, file in rows:
        context.check()
        if blobs.has(collection, [file]):
            repaired += _take_back(context, face)
    if repaired:
        context.resources.notifier.notify("changes")
    return repaired


def _take_back(context: JobContext, face: Face) -> bool:
    """Embed a face for every model that lacks it, and remove its mark. Returns False if a crop is still damaged."""
    resources = context.resources
    with reading(resources.database) as session:
        wanted = list_models_to_embed(session, face.collection_id)
        usable = {(model, task) for model, task in wanted if resources.models.find_damage(model) is None}
        embedded = select(Embedding.model_id, Embedding.task).where(Embedding.face_pk == face.pk)
        missing = usable - {(model, task) for model, task in session.execute(embedded)}
    try:
        for kind in CROP_SIZES_PIXELS:
            if resources.blobs.has(face.collection_id, [Blobs.crop(face.image_id, face.number, kind)]):
                read_crops(resources.blobs, [face], kind)
        vectors = {key: _embed(context, face, *key) for key in sorted(missing)}
    except (CropsDamaged, LikenessError) as error:
        log.info("face.still_damaged collection=%s error=%s", face.collection_id, error)
        return False
    with writing(resources.database) as session:
        collection = lock_collection(session, face.collection_id)
        mark, row = session.get(DamagedFace, face.pk), session.get(Face, face.pk)
        if mark is None or row is None or not list_models_to_embed(session, face.collection_id) <= wanted:
            return False
        for (model, task), rows in vectors.items():
            reembedding.store_embeddings(session, model, {task: rows}, [face.pk])
        collection.change += 1
        row.change = collection.change
        session.delete(mark)
    log.info("face.repaired collection=%s file=%s", face.collection_id, mark.file)
    return True


def _embed(context: JobContext, face: Face, model: str, task: str) -> Rows:
    return embed_batch(context, context.resources.models.get(model), (task,), [face])[task]
