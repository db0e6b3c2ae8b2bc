"""Embed the same faces under several models, each face described once for all models of one recipe."""

from collections.abc import Sequence

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.session import reading
from app.db.tables import Embedding
from app.errors import NotFound
from app.serving import index_builder
from ml.model import Model
from ml.types import Rows
from workers.context import JobContext
from workers.description import describe_faces
from workers.training.training_data import FaceRecord

CHUNK = 512


class CropGone(NotFound):
    """A face's crop is not in the store: the face was erased meanwhile, or the store is broken."""


Recipe = tuple[str, ...]
Stored = dict[int, bytes]
"""Face pk -> its embedding, as the tables hold it."""


def embed_faces(context: JobContext, models: Sequence[Model], task: str, faces: Sequence[FaceRecord]) -> list[Rows]:
    """One (N, d) for each model: from the tables where they hold it, else from the crops. Shown as the job's progress.

    Raises CropGone, Interrupted.
    """
    rows = [np.empty((len(faces), index_builder.find_embedding_size(m, task)), np.float32) for m in models]
    for start in range(0, len(faces), CHUNK):
        context.progress(start, len(faces))
        part = faces[start : start + CHUNK]
        with reading(context.resources.database) as session:
            stored = [_stored(session, m.id, task, part) for m in models]
        described = _described(context, models, part, stored)
        for model, known, out in zip(models, stored, rows, strict=True):
            out[start : start + len(part)] = _embedded(model, task, part, known, *described[model.recipe.keys])
    context.progress(len(faces), len(faces))
    return rows


def _embedded(
    model: Model, task: str, faces: Sequence[FaceRecord], known: Stored, fresh: Rows, row_of: dict[int, int]
) -> Rows:
    result = np.empty((len(faces), index_builder.find_embedding_size(model, task)), np.float32)
    missing = [i for i, face in enumerate(faces) if face.pk not in known]
    result[missing] = model.embed(fresh[[row_of[i] for i in missing]], task)
    for i, face in enumerate(faces):
        if face.pk in known:
            result[i] = np.frombuffer(known[face.pk], "<f4")
    return result


def _stored(session: Session, model: str, task: str, faces: Sequence[FaceRecord]) -> Stored:
    here = Embedding.model_id == model, Embedding.task == task, Embedding.face_pk.in_([f.pk for f in faces])
    return {
        row.face_pk: row.vector for row in session.execute(select(Embedding.face_pk, Embedding.vector).where(*here))
    }


def _described(
    context: JobContext, models: Sequence[Model], faces: Sequence[FaceRecord], stored: Sequence[Stored]
) -> dict[Recipe, tuple[Rows, dict[int, int]]]:
    """By recipe: descriptors of the faces that one of its models lacks, and in which row each is."""
    lacking: dict[Recipe, set[int]] = {}
    for model, known in zip(models, stored, strict=True):
        rows_lacking = lacking.setdefault(model.recipe.keys, set())
        rows_lacking |= {i for i, face in enumerate(faces) if face.pk not in known}
    result: dict[Recipe, tuple[Rows, dict[int, int]]] = {}
    for model in models:
        key = model.recipe.keys
        if key not in result:
            order = sorted(lacking[key])
            try:
                rows = describe_faces(context, model.recipe, [faces[i] for i in order])
            except NotFound as gone:
                raise CropGone(gone.detail) from gone
            result[key] = rows, {i: row for row, i in enumerate(order)}
    return result
