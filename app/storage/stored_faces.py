"""Read and describe stored faces.

Expensive descriptors are cached in half precision beside the crops: see docs/decisions/0005.
"""

import errno
import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine, select

from app.db.session import reading
from app.db.tables import Face
from app.errors import AppError, NotFound
from app.storage.blob_store import DAMAGED_CODE, Blobs
from ml.aligners.similarity import CROP_SIZES_PIXELS
from ml.descriptors.base import Descriptor
from ml.errors import Corrupt
from ml.images import decode_png
from ml.model import Recipe
from ml.types import CropKind, Crops, Rows

DISK_ERRORS = (errno.EIO, errno.EUCLEAN, errno.EBADMSG) if sys.platform == "linux" else (errno.EIO,)
"""What the system answers where a disk or file system cannot give a file's bytes any more."""
CHECKSUM_BYTES = 4
"""A CRC-32, little-endian, at the end of a file of the cache."""


class StoredFace(Protocol):
    """What names the files and rows of a face: a row of the table `faces`, or another record with these fields."""

    @property
    def pk(self) -> int: ...
    @property
    def collection_id(self) -> str: ...
    @property
    def image_id(self) -> str: ...
    @property
    def number(self) -> int: ...


class DamagedCrop(NamedTuple):
    """A face with a crop that cannot be read. file: the name of the crop; reason: what is wrong with it"""

    face: StoredFace
    file: str
    reason: str


class CropsDamaged(AppError):
    """Stored crops are damaged or missing. A face without a crop may also have been erased meanwhile.

    The text names no file: the problem of a job keeps it, and an erasure knows no hashes of photos by then.
    """

    def __init__(self, crops: Sequence[DamagedCrop]) -> None:
        first = crops[0]
        super().__init__(
            f"{len(crops)} stored crops cannot be read; the first is of collection {first.face.collection_id}: "
            f"{first.reason}",
            code=DAMAGED_CODE,
        )
        self.crops = tuple(crops)


def read_crops(blobs: Blobs, faces: Sequence[StoredFace], kind: CropKind) -> Crops:
    """Return the (N, height, width[, 3]) crops of one kind, in the order of the faces.

    Raises CropsDamaged, which names every one of these faces whose crop cannot be read.
    """
    crops, damaged = [], []
    for face in faces:
        file = Blobs.crop(face.image_id, face.number, kind)
        try:
            crops.append(_read_crop(blobs, face.collection_id, file, kind))
        except NotFound:
            damaged.append(DamagedCrop(face, file, "it is missing"))
        except (Corrupt, OSError) as error:
            if isinstance(error, OSError) and error.errno not in DISK_ERRORS:
                raise
            reason = str(error.strerror) if isinstance(error, OSError) else str(error)  # its text names the file
            damaged.append(DamagedCrop(face, file, reason))
    if damaged:
        raise CropsDamaged(damaged)
    return np.stack(crops)


def _read_crop(blobs: Blobs, collection: str, file: str, kind: CropKind) -> NDArray[np.uint8]:
    crop = decode_png(blobs.get(collection, file))
    width, height = CROP_SIZES_PIXELS[kind]
    if crop.shape[:2] != (height, width):
        raise Corrupt(f"a stored crop has {crop.shape[1]} x {crop.shape[0]} pixels, not {width} x {height}")
    return crop


def list_damaged_crops(blobs: Blobs, recipe: Recipe, faces: Sequence[StoredFace]) -> list[DamagedCrop]:
    """List the faces that cannot be described because a crop cannot be read. Nothing is described."""
    damaged: dict[tuple[str, str], DamagedCrop] = {}
    for descriptor, key in zip(recipe.built, recipe.keys, strict=True):
        needed = faces
        if descriptor.is_costly:
            needed = [face for face in faces if _read_cached(blobs, face, key, descriptor.dim) is None]
        try:
            if needed:
                read_crops(blobs, needed, descriptor.crop)
        except CropsDamaged as error:
            damaged |= {(crop.face.collection_id, crop.file): crop for crop in error.crops}
    return list(damaged.values())


def describe_stored_faces(blobs: Blobs, database: Engine, recipe: Recipe, faces: Sequence[StoredFace]) -> Rows:
    """Return (N, recipe.dim) descriptors: expensive ones through the cache, the others from the crops.

    Raises CropsDamaged.
    """
    columns = []
    for descriptor, key in zip(recipe.built, recipe.keys, strict=True):
        if not descriptor.is_costly:
            crops = read_crops(blobs, faces, descriptor.crop)
            rows = descriptor.describe(crops)
        else:
            rows = _describe_through_cache(blobs, database, descriptor, key, faces)
        columns.append(rows)
    return np.concatenate(columns, axis=1)


def make_cache_files(key: str, faces: Iterable[tuple[str, int]], rows: Rows) -> list[tuple[str, bytes]]:
    """Return the name and content of each face's cache file, for `Blobs.put`.

    key: of the descriptor; faces: the photo of each, and its number there; rows: (N, dim)
    """
    halves = np.ascontiguousarray(rows, "<f2")
    return [
        (Blobs.described(*face, key), _add_checksum(half.tobytes())) for face, half in zip(faces, halves, strict=True)
    ]


def _add_checksum(data: bytes) -> bytes:
    return data + zlib.crc32(data).to_bytes(CHECKSUM_BYTES, "little")


def _describe_through_cache(
    blobs: Blobs, database: Engine, descriptor: Descriptor, key: str, faces: Sequence[StoredFace]
) -> Rows:
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
            _uncache_erased(blobs, database, key, collection, names)
    return rows


def _uncache_erased(
    blobs: Blobs, database: Engine, key: str, collection: str, faces: Sequence[tuple[str, int]]
) -> None:
    """Remove what was cached of faces whose rows are gone: the erasure may have removed their files before.

    faces: the photo of each, and its number there
    """
    stored = select(Face.image_id, Face.number).where(
        Face.collection_id == collection, Face.image_id.in_({image for image, _ in faces})
    )
    with reading(database) as session:
        kept = set(session.execute(stored).all())
    if erased := [face for face in faces if face not in kept]:
        blobs.remove(collection, [Blobs.described(*face, key) for face in erased])


def _read_cached(blobs: Blobs, face: StoredFace, key: str, dim: int) -> Rows | None:
    """Return (dim,), or None where the cache has no such file. A damaged file is removed.

    A file of an earlier version has no checksum; its size is checked, and that its values are finite.
    """
    name = Blobs.described(face.image_id, face.number, key)
    try:
        data = blobs.get(face.collection_id, name)
    except NotFound:
        return None
    values, has_checksum = data[: 2 * dim], len(data) == 2 * dim + CHECKSUM_BYTES
    row = np.frombuffer(values, "<f2").astype(np.float32) if len(values) == 2 * dim else np.empty(0, np.float32)
    is_whole = data == _add_checksum(values) if has_checksum else len(data) == 2 * dim
    if is_whole and np.isfinite(row).all():
        return row
    blobs.remove(face.collection_id, [name])
    return None
