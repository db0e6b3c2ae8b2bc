"""Compute the descriptors of stored crops, in batches, on as many threads as the process may use."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from app.errors import NotFound
from app.resources import Resources
from app.storage import descriptor_cache
from app.storage.blob_store import Blobs
from app.threads import get_threads
from ml.descriptors.base import Descriptor
from ml.images import decode_png
from ml.model import Recipe
from ml.types import CropKind, Crops, Rows
from workers.context import JobContext

FACES_PER_TASK = 64
"""Large enough to be worth the hand-over to a thread, small enough to notice a cancellation soon."""


class StoredFace(Protocol):
    """What names a face's crops: a row of `faces`, or the like."""

    @property
    def collection_id(self) -> str: ...
    @property
    def image_id(self) -> str: ...
    @property
    def number(self) -> int: ...


OnProgress = Callable[[int, int], None]
"""on_progress(done, total) is called after each batch; it may raise to stop."""


def describe_faces(
    resources: Resources,
    recipe: Recipe,
    faces: Sequence[StoredFace],
    context: JobContext,
    on_progress: OnProgress | None = None,
) -> Rows:
    """Return (N, recipe.dim) descriptors, in the order of the faces.

    Raises NotFound (a crop is missing), ml.Corrupt, Interrupted.
    """
    rows = np.empty((len(faces), recipe.dim), np.float32)
    done = 0
    for batch in describe_in_batches(resources, recipe, faces, context):
        rows[done : done + len(batch)] = batch
        done += len(batch)
        if on_progress is not None:
            on_progress(done, len(faces))
    return rows


def describe_in_batches(
    resources: Resources, recipe: Recipe, faces: Sequence[StoredFace], context: JobContext, size: int = FACES_PER_TASK
) -> Iterator[Rows]:
    """Yield the descriptors in batches of `size`, so that they need not all be held. Raises as `describe_faces`."""

    def describe_batch(start: int) -> Rows:
        return _describe(resources.blobs, recipe, faces[start : start + size])

    starts = range(0, len(faces), size)
    threads = max(1, get_threads())
    with ThreadPoolExecutor(threads, thread_name_prefix="describe") as pool:
        for first in range(0, len(starts), 2 * threads):
            context.check()
            yield from pool.map(describe_batch, starts[first : first + 2 * threads])


def load_crops(blobs: Blobs, faces: Sequence[StoredFace], kinds: Sequence[CropKind]) -> dict[CropKind, Crops]:
    """Return the crops of these faces, of each kind. Raises NotFound, ml.Corrupt."""
    return {
        kind: np.stack([decode_png(blobs.get(f.collection_id, Blobs.crop(f.image_id, f.number, kind))) for f in faces])
        for kind in kinds
    }


def _describe(blobs: Blobs, recipe: Recipe, faces: Sequence[StoredFace]) -> Rows:
    """Return (n, recipe.dim): costly descriptors through the cache, the others from the crops."""
    columns = []
    for descriptor, key in zip(recipe.built, recipe.keys, strict=True):
        if descriptor.is_costly:
            columns.append(_describe_cached(blobs, descriptor, key, faces))
        else:
            columns.append(_describe_crops(blobs, descriptor, faces))
    return np.concatenate(columns, axis=1)


def _describe_crops(blobs: Blobs, descriptor: Descriptor, faces: Sequence[StoredFace]) -> Rows:
    return descriptor.describe(load_crops(blobs, faces, [descriptor.crop])[descriptor.crop])


def _describe_cached(blobs: Blobs, descriptor: Descriptor, key: str, faces: Sequence[StoredFace]) -> Rows:
    """Return (n, dim). What the cache lacks is computed from the crops and then cached."""
    names = [(f.image_id, f.number) for f in faces]
    rows = np.empty((len(faces), descriptor.dim), np.float32)
    missing = []
    for i, (face, name) in enumerate(zip(faces, names, strict=True)):
        cached = _read_cached(blobs, face.collection_id, Blobs.described(*name, key), descriptor.dim)
        if cached is None:
            missing.append(i)
        else:
            rows[i] = cached
    if missing:
        rows[missing] = _describe_crops(blobs, descriptor, [faces[i] for i in missing])
        for collection in {faces[i].collection_id for i in missing}:
            computed = [i for i in missing if faces[i].collection_id == collection]
            blobs.put(collection, descriptor_cache.files(key, [names[i] for i in computed], rows[computed]))
    return rows


def _read_cached(blobs: Blobs, collection: str, name: str, dim: int) -> Rows | None:
    """Return (dim,), or None where the cache has no such file; a file of another size is removed."""
    try:
        row = descriptor_cache.numbers(blobs.get(collection, name), dim)
    except NotFound:
        return None
    if row is None:
        blobs.remove(collection, [name])
    return row
