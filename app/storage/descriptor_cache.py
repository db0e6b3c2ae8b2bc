"""What dear descriptors said of faces, in half precision, as files beside their crops: docs/decisions/0005."""

from collections.abc import Iterable

import numpy as np

from app.storage.blob_store import Blobs
from ml.types import Rows


def files(key: str, faces: Iterable[tuple[str, int]], rows: Rows) -> list[tuple[str, bytes]]:
    """To be put. key: of the descriptor; faces: the photo of each, and its number there."""
    halves = np.ascontiguousarray(rows, "<f2")
    return [(Blobs.described(*face, key), half.tobytes()) for face, half in zip(faces, halves, strict=True)]


def numbers(data: bytes, dim: int) -> Rows | None:
    """(dim,) of what was put; None where it is not so many."""
    return np.frombuffer(data, "<f2").astype(np.float32) if len(data) == 2 * dim else None
