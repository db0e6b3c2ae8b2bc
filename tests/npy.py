"""Files of vectors as clients send them."""

import io
from typing import Any

import numpy as np

from ml.types import Rows


def to_npy(vectors: Any) -> bytes:
    """Return the bytes that `np.save` writes."""
    file = io.BytesIO()
    np.save(file, vectors)
    return file.getvalue()


def draw_people(count: int, photos: int, dim: int = 16, seed: int = 0, spread: float = 0.3) -> tuple[Rows, list[str]]:
    """Draw (count * photos, dim) vectors around a centre for each person; return them with the subject of each."""
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((count, dim)).repeat(photos, axis=0)
    rows = (centres + spread * draw.standard_normal(centres.shape)).astype(np.float32)
    return rows, [f"p{i:03}" for i in np.arange(count).repeat(photos)]
