"""Encode embeddings as the bytes of the table, float32 and little-endian, and decode them."""

from collections.abc import Sequence

import numpy as np

from ml.types import Rows


def encode_embeddings(rows: Rows) -> list[bytes]:
    """Return the bytes of each of (n, dim) rows."""
    return [row.tobytes() for row in np.ascontiguousarray(rows, "<f4")]


def decode_embeddings(vectors: Sequence[bytes], dim: int) -> Rows:
    """Return the (n, dim) rows, which are read-only."""
    return np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), dim)
