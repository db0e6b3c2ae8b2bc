"""Describe many stored faces in batches, on as many threads as the process may use."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from app.storage.stored_faces import StoredFace, describe_stored_faces
from app.threads import get_threads
from ml.embedders.base import Progress, ignore_progress
from ml.model import Recipe
from ml.types import Rows
from workers.context import JobContext

FACES_PER_TASK = 64
"""Enough work for a thread to be worth the hand-over, and little enough to notice a cancellation soon."""


def describe_faces(
    context: JobContext, recipe: Recipe, faces: Sequence[StoredFace], progress: Progress = ignore_progress
) -> Rows:
    """Return (N, recipe.dim) descriptors, in the order of the faces. `progress` is called after each batch.

    Raises NotFound (a crop is missing), ml.Corrupt, Interrupted, and whatever the progress raises.
    """
    rows = np.empty((len(faces), recipe.dim), np.float32)
    done = 0
    for batch in describe_in_batches(context, recipe, faces):
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

    def describe_batch(start: int) -> Rows:
        return describe_stored_faces(context.resources.blobs, recipe, faces[start : start + size])

    starts = range(0, len(faces), size)
    threads = max(1, get_threads())
    with ThreadPoolExecutor(threads, thread_name_prefix="describe") as pool:
        for first in range(0, len(starts), 2 * threads):
            context.check()
            yield from pool.map(describe_batch, starts[first : first + 2 * threads])
