"""Describe many stored faces in batches, on as many threads as the process may use."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from sqlalchemy import select, tuple_

from app.db.session import reading
from app.db.tables import Face
from app.errors import Conflict
from app.serving.limits.photo_failures import PhotoFailed, is_caused_by_photo, report_photo_failure
from app.storage.stored_faces import (
    CropsDamaged,
    DamagedCrop,
    StoredFace,
    describe_stored_faces,
    list_damaged_crops,
)
from app.threads import get_threads
from ml.embedders.base import Progress, ignore_progress
from ml.model import Recipe
from ml.types import Rows
from workers.context import JobContext
from workers.imported_vectors import check_faces_suit, choose_batch_size, read_imported

FACES_PER_TASK = 64
"""Enough work for a thread to be worth the hand-over, and little enough to notice a cancellation soon."""


class FacesFailed(Conflict):
    """A descriptor raises an error over the crops of these faces."""

    def __init__(self, faces: Sequence[StoredFace], face_ids: list[str], descriptors: str) -> None:
        detail = f"faces whose crops raise an error in {descriptors}: {', '.join(face_ids)}"
        advice = "delete them or enrol other photos, and start the job again"
        super().__init__(f"{detail}; {advice}", code="FacesFailed", face_ids=face_ids)
        self.faces = tuple(faces)


def describe_faces(
    context: JobContext, recipe: Recipe, faces: Sequence[StoredFace], progress: Progress = ignore_progress
) -> Rows:
    """Return (N, recipe.dim) descriptors, in the order of the faces. `progress` is called after each batch.

    Raises CropsDamaged, which names all of these faces whose crops cannot be read, FacesFailed, Interrupted, and
    whatever the progress raises.
    """
    size = FACES_PER_TASK if recipe.external is None else choose_batch_size(recipe.dim)
    rows, done = np.empty((len(faces), recipe.dim), np.float32), 0
    for batch in describe_in_batches(context, recipe, faces, size):
        rows[done : done + len(batch)] = batch
        done += len(batch)
        progress(done, len(faces), {})
    return rows


def describe_in_batches(
    context: JobContext, recipe: Recipe, faces: Sequence[StoredFace], size: int = FACES_PER_TASK
) -> Iterator[Rows]:
    """Yield the descriptors in batches of `size`, so that the caller need not hold all of them.

    Raises the errors of `describe_faces`.
    """
    check_faces_suit(context, recipe, faces)
    describe = _describe_crops if recipe.external is None else read_imported
    yield from describe(context, recipe, faces, size)


def _describe_crops(context: JobContext, recipe: Recipe, faces: Sequence[StoredFace], size: int) -> Iterator[Rows]:
    damaged: dict[int, Sequence[DamagedCrop]] = {}

    def describe_batch(start: int) -> Rows | None:
        """Return the rows; None once a crop is damaged: from then on, the crops are only checked."""
        part, resources = faces[start : start + size], context.resources
        if damaged:
            damaged[start] = list_damaged_crops(resources.blobs, recipe, part)
            return None
        try:
            return describe_stored_faces(resources.blobs, resources.database, recipe, part)
        except CropsDamaged:
            damaged[start] = list_damaged_crops(resources.blobs, recipe, part)
            return None
        except Exception as error:
            if not is_caused_by_photo(error):
                raise
            return _describe_separately(context, recipe, part)

    starts = range(0, len(faces), size)
    threads = max(1, get_threads())
    with ThreadPoolExecutor(threads, thread_name_prefix="describe") as pool:
        for first in range(0, len(starts), 2 * threads):
            context.check()
            for batch in pool.map(describe_batch, starts[first : first + 2 * threads]):
                if batch is not None:
                    yield batch
    if damaged:
        raise CropsDamaged([crop for start in sorted(damaged) for crop in damaged[start]])


def _describe_separately(context: JobContext, recipe: Recipe, faces: Sequence[StoredFace]) -> Rows:
    """Describe faces one by one, so that the error names those that cause it. Raises FacesFailed."""
    rows, failed, resources = [], [], context.resources
    for face in faces:
        context.check()
        try:
            with report_photo_failure("embed"):
                rows.append(describe_stored_faces(resources.blobs, resources.database, recipe, [face]))
        except PhotoFailed:
            failed.append(face)
    if failed:
        descriptors = ", ".join(spec.name for spec in recipe.descriptors)
        raise FacesFailed(failed, _read_face_ids(context, failed), descriptors)
    return np.concatenate(rows)


def _read_face_ids(context: JobContext, faces: Sequence[StoredFace]) -> list[str]:
    keys = [(face.collection_id, face.image_id, face.number) for face in faces]
    with reading(context.resources.database) as session:
        named = tuple_(Face.collection_id, Face.image_id, Face.number).in_(keys)
        return list(session.scalars(select(Face.face_id).where(named).order_by(Face.pk)))
