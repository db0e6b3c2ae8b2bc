"""Embed stored faces with a model, from their crops, without storing the embeddings."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from app.db.session import reading
from app.db.tables import Face
from app.errors import AppError, NotFound
from app.galleries.learned_collections import LearnedCollection
from app.serving.index_builder import find_embedding_size
from app.storage.stored_faces import CropsDamaged, StoredFace
from ml.model import Model
from ml.types import Rows
from workers.context import JobContext
from workers.description import FacesFailed, describe_faces, describe_in_batches
from workers.imported_vectors import VectorsErased

log = logging.getLogger("likeness.embedding")

SAMPLED_FACES = 2_000


class FaceRow(NamedTuple):
    """What names the files and rows of a face. See `StoredFace`."""

    pk: int
    collection_id: str
    image_id: str
    number: int


FACE_COLUMNS = Face.pk, Face.collection_id, Face.image_id, Face.number


def embed_sample(context: JobContext, model: Model, task: str, source: LearnedCollection) -> tuple[int, Rows]:
    """Return how many faces of a collection a model may have learned from, and (n, d) embeddings of some.

    SAMPLED_FACES are drawn at most. Their embeddings are not stored. See `embed_describable` for which are left out.
    Raises Conflict, Interrupted.
    """
    with reading(context.resources.database) as session:
        is_learned = source.match_faces(session, model.recipe.external)
        count = session.scalar(select(func.count()).select_from(Face).where(is_learned)) or 0
        faces = read_faces(session, select(Face).where(Face.pk.in_(draw_sample(session, is_learned))))
    return count, embed_describable(context, model, [task], faces)[1][task]


def draw_sample(session: Session, condition: ColumnElement[bool]) -> list[int]:
    """Return the pks of drawn faces that meet a condition, SAMPLED_FACES at most."""
    pks = np.array(list(session.scalars(select(Face.pk).where(condition))), np.int64)
    sample: list[int] = np.random.default_rng(0).permutation(np.sort(pks))[:SAMPLED_FACES].tolist()
    return sample


def read_faces(session: Session, wanted: Select[Face]) -> list[FaceRow]:
    """Read what names the files and rows of these faces."""
    return list(map(FaceRow._make, session.execute(wanted.with_only_columns(*FACE_COLUMNS))))


def embed_describable(
    context: JobContext, model: Model, tasks: Sequence[str], faces: list[FaceRow]
) -> tuple[list[FaceRow], dict[str, Rows]]:
    """Return those of the faces that can be described, n of them, and their (n, d) embeddings for each task.

    They are faces of other collections than the job's, so that the others are left out without an error that names
    them: they are damaged, a descriptor raises an error over them, or they were erased meanwhile. Raises Conflict (it
    took too long), Interrupted.
    """
    while faces:
        try:
            return faces, embed_batch(context, model, tasks, faces)
        except AppError as error:
            failed = _list_failed(error, faces)
            if not failed:
                raise
            log.warning(
                "sample.left_out collection=%s faces=%d code=%s", faces[0].collection_id, len(failed), error.code
            )
            faces = [face for face in faces if face.pk not in failed]
    return [], {task: np.empty((0, find_embedding_size(model, task)), np.float32) for task in tasks}


def _list_failed(error: AppError, faces: Sequence[FaceRow]) -> set[int]:
    """Return the pks of the faces because of which an error was raised: none, or all if their collection is gone."""
    if isinstance(error, CropsDamaged):
        return {crop.face.pk for crop in error.crops}
    if isinstance(error, FacesFailed | VectorsErased):
        return {face.pk for face in error.faces}
    is_gone = isinstance(error, NotFound) or error.code == "ExternalDescriptor"  # there may be another one by now
    return {face.pk for face in faces} if is_gone else set()


def embed_batch(
    context: JobContext, model: Model, tasks: Sequence[str], faces: Sequence[StoredFace]
) -> dict[str, Rows]:
    """Return (N, d) embeddings of these faces for each task. Raises CropsDamaged, Interrupted."""
    if model.recipe.external is None:
        rows = describe_faces(context, model.recipe, faces)
    else:
        [rows] = describe_in_batches(context, model.recipe, faces, len(faces))  # as they were read, without a copy
    return {task: model.embed(rows, task) for task in tasks}
