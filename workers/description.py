"""From stored crops to descriptors, in batches, on as many threads as the process may use."""

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
        return _described(resources.blobs, recipe, faces[start : start + size])

    starts = range(0, len(faces), size)
    threads = max(1, get_threads())
    with ThreadPoolExecutor(threads, thread_name_prefix="gather") as pool:
        for first in range(0, len(starts), 2 * threads):
            context.check()
            yield from pool.map(one, starts[first : first + 2 * threads])


def _described(blobs: Blobs, recipe: Recipe, faces: Sequence[StoredFace]) -> Rows:
    """(n, recipe.dim): dear descriptors as they were kept, or kept from now on; the others from the crops."""
    columns = []
    for descriptor, key in zip(recipe.built, recipe.keys, strict=True):
        if descriptor.is_costly:
            columns.append(_kept(blobs, descriptor, key, faces))
        else:
            columns.append(descriptor.describe(crops(blobs, faces, [descriptor.crop])[descriptor.crop]))
    return np.concatenate(columns, axis=1)


def _kept(blobs: Blobs, descriptor: Descriptor, key: str, faces: Sequence[StoredFace]) -> Rows:
    """(n, dim). What was not kept, or not whole, is computed from the crops and kept from now on."""
    names = [(f.image_id, f.number) for f in faces]
    rows = np.empty((len(faces), descriptor.dim), np.float32)
    missing = []
    for i, (face, name) in enumerate(zip(faces, names, strict=True)):
        found = _read(blobs, face.collection_id, Blobs.described(*name, key), descriptor.dim)
        if found is None:
            missing.append(i)
        else:
            rows[i] = found
    if missing:
        wanting = [faces[i] for i in missing]
        rows[missing] = descriptor.describe(crops(blobs, wanting, [descriptor.crop])[descriptor.crop])
        for collection in {f.collection_id for f in wanting}:
            mine = [i for i in missing if faces[i].collection_id == collection]
            blobs.put(collection, descriptor_cache.files(key, [names[i] for i in mine], rows[mine]))
    return rows


def _read(blobs: Blobs, collection: str, name: str, dim: int) -> Rows | None:
    """(dim,), or None where no such file is; one of another size is removed, so that it can be put again."""
    try:
        found = descriptor_cache.numbers(blobs.get(collection, name), dim)
    except NotFound:
        return None
    if found is None:
        blobs.remove(collection, [name])
    return found


def crops(blobs: Blobs, faces: Sequence[StoredFace], kinds: Sequence[CropKind]) -> dict[CropKind, Crops]:
    """The crops of these faces, of each kind. Raises NotFound, ml.Corrupt."""
    return {
        kind: np.stack([decode_png(blobs.get(f.collection_id, Blobs.crop(f.image_id, f.number, kind))) for f in faces])
        for kind in kinds
    }
