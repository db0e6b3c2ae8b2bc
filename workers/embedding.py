"""Embed stored faces with a model, from their crops, without storing the embeddings."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.db.session import reading
from app.db.tables import Face
from app.serving.index_builder import find_embedding_size
from app.storage.stored_faces import CropsDamaged, StoredFace
from ml.model import Model
from ml.types import Rows
from workers.context import JobContext
from workers.description import describe_faces, describe_in_batches

SAMPLED_FACES = 2_000


class FaceRow(NamedTuple):
    """What names the files and rows of a face. See `StoredFace`."""

    pk: int
    collection_id: str
    image_id: str
    number: int


FACE_COLUMNS = Face.pk, Face.collection_id, Face.image_id, Face.number


def embed_sample(context: JobContext, model: Model, task: str, collection: str) -> Rows:
    """Return (n, d) embeddings of drawn faces of a collection, SAMPLED_FACES at most, without storing them.

    Faces whose crops are damaged, or that are erased meanwhile, are left out. Raises Conflict, Interrupted.
    """
    with reading(context.resources.database) as session:
        faces = read_faces(session, select(Face).where(Face.pk.in_(draw_sample(session, collection))))
    return embed_undamaged(context, model, [task], faces)[1][task]


def draw_sample(session: Session, collection: str) -> list[int]:
    """Return the pks of drawn faces of a collection, SAMPLED_FACES at most."""
    pks = np.array(list(session.scalars(select(Face.pk).where(Face.collection_id == collection))), np.int64)
    sample: list[int] = np.random.default_rng(0).permutation(np.sort(pks))[:SAMPLED_FACES].tolist()
    return sample


def read_faces(session: Session, wanted: Select[Face]) -> list[FaceRow]:
    """Read what names the files and rows of these faces."""
    return list(map(FaceRow._make, session.execute(wanted.with_only_columns(*FACE_COLUMNS))))


def embed_undamaged(
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
