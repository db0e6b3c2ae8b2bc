"""Embed the same faces with several models. Each face is described once for all models of one recipe."""

from collections.abc import Sequence

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import reading
from app.db.tables import Embedding
from app.serving import index_builder
from app.storage.embedding_codec import decode_embeddings
from ml.model import Model
from ml.types import Rows
from workers.context import JobContext
from workers.description import describe_faces
from workers.training.training_data import FaceRecord

FACES_PER_CHUNK = 512


RecipeKeys = tuple[str, ...]
StoredEmbeddings = dict[int, bytes]
"""Face pk -> its embedding, as stored in the database."""


def embed_faces(context: JobContext, models: Sequence[Model], task: str, faces: Sequence[FaceRecord]) -> list[Rows]:
    """Return (N, d) embeddings for each model: from the database where it has them, else from the crops.

    Reports the job's progress. Raises CropsDamaged, Interrupted.
    """
    rows = [np.empty((len(faces), index_builder.find_embedding_size(m, task)), np.float32) for m in models]
    for start in range(0, len(faces), FACES_PER_CHUNK):
        context.progress(start, len(faces))
        part = faces[start : start + FACES_PER_CHUNK]
        with reading(context.resources.database) as session:
            stored = [_read_stored(session, m.id, task, part) for m in models]
        described = _describe_missing(context, models, part, stored)
        for model, known, out in zip(models, stored, rows, strict=True):
            out[start : start + len(part)] = _embed_missing(model, task, part, known, *described[model.recipe.keys])
    context.progress(len(faces), len(faces))
    return rows


def _embed_missing(
    model: Model, task: str, faces: Sequence[FaceRecord], known: StoredEmbeddings, fresh: Rows, row_of: dict[int, int]
) -> Rows:
    result = np.empty((len(faces), index_builder.find_embedding_size(model, task)), np.float32)
    missing = [i for i, face in enumerate(faces) if face.pk not in known]
    result[missing] = model.embed(fresh[[row_of[i] for i in missing]], task)
    stored = [i for i, face in enumerate(faces) if face.pk in known]
    result[stored] = decode_embeddings([known[faces[i].pk] for i in stored], result.shape[1])
    return result


def _read_stored(session: Session, model: str, task: str, faces: Sequence[FaceRecord]) -> StoredEmbeddings:
    here = Embedding.model_id == model, Embedding.task == task, Embedding.face_pk.in_([f.pk for f in faces])
    return {
        row.face_pk: row.vector for row in session.execute(select(Embedding.face_pk, Embedding.vector).where(*here))
    }


def _describe_missing(
    context: JobContext, models: Sequence[Model], faces: Sequence[FaceRecord], stored: Sequence[StoredEmbeddings]
) -> dict[RecipeKeys, tuple[Rows, dict[int, int]]]:
    """Describe, for each recipe, the faces that one of its models lacks: the rows, and face index -> row number."""
    missing: dict[RecipeKeys, set[int]] = {}
    for model, known in zip(models, stored, strict=True):
        of_recipe = missing.setdefault(model.recipe.keys, set())
        of_recipe |= {i for i, face in enumerate(faces) if face.pk not in known}
    result: dict[RecipeKeys, tuple[Rows, dict[int, int]]] = {}
    for model in models:
        key = model.recipe.keys
        if key not in result:
            order = sorted(missing[key])
            rows = describe_faces(context, model.recipe, [faces[i] for i in order])
            result[key] = rows, {i: row for row, i in enumerate(order)}
    return result
