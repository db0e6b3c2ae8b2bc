"""From stored crops to descriptors, in batches, on as many threads as the process may use."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from app.resources import Resources
from app.storage.blobs import Blobs
from app.threads import get_threads
from ml.generation import Recipe
from ml.images import unpng
from ml.types import CropKind, Crops, Rows
from workers.context import JobContext

BATCH = 64
"""Faces of one task of a thread: large enough to be worth the hand-over, small enough to hear a cancel."""


class StoredFace(Protocol):
    """What names a face's crops: a row of `faces`, or the like."""

    @property
    def collection_id(self) -> str: ...
    @property
    def image_id(self) -> str: ...
    @property
    def number(self) -> int: ...


Told = Callable[[int, int], None]
"""told(done, total): called after each batch; it may raise to stop."""


def describe(
    resources: Resources, recipe: Recipe, faces: Sequence[StoredFace], context: JobContext, told: Told | None = None
) -> Rows:
    """(N, recipe.dim), in the order of the faces. Raises NotFound (a crop is gone), ml.Corrupt, Interrupted."""
    rows = np.empty((len(faces), recipe.dim), np.float32)
    done = 0
    for part in batches(resources, recipe, faces, context):
        rows[done : done + len(part)] = part
        done += len(part)
        if told is not None:
            told(done, len(faces))
    return rows


def batches(
    resources: Resources, recipe: Recipe, faces: Sequence[StoredFace], context: JobContext, size: int = BATCH
) -> Iterator[Rows]:
    """The same, piece by piece, for those who need not hold all of it. Raises as `describe`."""

    def one(start: int) -> Rows:
        return recipe.describe(crops(resources.blobs, faces[start : start + size], recipe.crops))

    starts = range(0, len(faces), size)
    threads = max(1, get_threads())
    with ThreadPoolExecutor(threads, thread_name_prefix="gather") as pool:
        for first in range(0, len(starts), 2 * threads):
            context.check()
            yield from pool.map(one, starts[first : first + 2 * threads])


def crops(blobs: Blobs, faces: Sequence[StoredFace], kinds: Sequence[CropKind]) -> dict[CropKind, Crops]:
    """The crops of these faces, of each kind. Raises NotFound, ml.Corrupt."""
    return {
        kind: np.stack([unpng(blobs.get(f.collection_id, Blobs.crop(f.image_id, f.number, kind))) for f in faces])
        for kind in kinds
    }
