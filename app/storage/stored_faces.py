"""Read and describe stored faces.

Expensive descriptors are cached in half precision beside the crops: see docs/decisions/0005.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from app.errors import NotFound
from app.storage.blob_store import Blobs
from ml.descriptors.base import Descriptor
from ml.images import decode_png
from ml.model import Recipe
from ml.types import CropKind, Crops, Rows


class StoredFace(Protocol):
    """What names the files of a face: a row of the table `faces`, or another record with these fields."""

    @property
    def collection_id(self) -> str: ...
    @property
    def image_id(self) -> str: ...
    @property
    def number(self) -> int: ...


def read_crops(blobs: Blobs, faces: Sequence[StoredFace], kind: CropKind) -> Crops:
    """Return the (N, height, width[, 3]) crops of one kind, in the order of the faces. Raises NotFound, ml.Corrupt."""
    files = ((face.collection_id, Blobs.crop(face.image_id, face.number, kind)) for face in faces)
    return np.stack([decode_png(blobs.get(collection, name)) for collection, name in files])


def describe_stored_faces(blobs: Blobs, recipe: Recipe, faces: Sequence[StoredFace]) -> Rows:
    """Return (N, recipe.dim) descriptors: expensive ones through the cache, the others from the crops.

    Raises NotFound (a crop is missing), ml.Corrupt.
    """
    columns = []
    for descriptor, key in zip(recipe.built, recipe.keys, strict=True):
        if not descriptor.is_costly:
            crops = read_crops(blobs, faces, descriptor.crop)
            rows = descriptor.describe(crops)
        else:
            rows = _describe_through_cache(blobs, descriptor, key, faces)
        columns.append(rows)
    return np.concatenate(columns, axis=1)


def make_cache_files(key: str, faces: Iterable[tuple[str, int]], rows: Rows) -> list[tuple[str, bytes]]:
    """Return the name and content of each face's cache file, for `Blobs.put`.

    key: of the descriptor; faces: the photo of each, and its number there; rows: (N, dim)
    """
    halves = np.ascontiguousarray(rows, "<f2")
    return [(Blobs.described(*face, key), half.tobytes()) for face, half in zip(faces, halves, strict=True)]


def _describe_through_cache(blobs: Blobs, descriptor: Descriptor, key: str, faces: Sequence[StoredFace]) -> Rows:
    """Return (N, dim). Faces that the cache lacks are described from their crops, and then cached."""
    rows = np.empty((len(faces), descriptor.dim), np.float32)
    missing = []
    for i, face in enumerate(faces):
        cached = _read_cached(blobs, face, key, descriptor.dim)
        if cached is None:
            missing.append(i)
        else:
            rows[i] = cached
    if missing:
        crops = read_crops(blobs, [faces[i] for i in missing], descriptor.crop)
        rows[missing] = descriptor.describe(crops)
        for collection in {faces[i].collection_id for i in missing}:
            computed = [i for i in missing if faces[i].collection_id == collection]
            names = [(faces[i].image_id, faces[i].number) for i in computed]
            files = make_cache_files(key, names, rows[computed])
            blobs.put(collection, files)
    return rows


def _read_cached(blobs: Blobs, face: StoredFace, key: str, dim: int) -> Rows | None:
    """Return (dim,), or None where the cache has no such file. A file of another size is removed."""
    name = Blobs.described(face.image_id, face.number, key)
    try:
        data = blobs.get(face.collection_id, name)
    except NotFound:
        return None
    if len(data) != 2 * dim:
        blobs.remove(face.collection_id, [name])
        return None
    return np.frombuffer(data, "<f2").astype(np.float32)
