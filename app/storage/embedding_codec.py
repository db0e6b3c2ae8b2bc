"""Embeddings as the table keeps them: float32, little-endian."""

from collections.abc import Sequence

import numpy as np

from ml.types import Rows


def encode_embeddings(rows: Rows) -> list[bytes]:
    """The bytes of each of (n, dim) rows."""
    return [row.tobytes() for row in np.ascontiguousarray(rows, "<f4")]


def decode_embeddings(vectors: Sequence[bytes], dim: int) -> Rows:
    """(n, dim) rows, read-only."""
    return np.frombuffer(b"".join(vectors), "<f4").reshape(len(vectors), dim)
