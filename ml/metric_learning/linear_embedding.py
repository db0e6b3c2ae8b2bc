"""One linear map as an embedding: z = L x - offset, of unit length if asked for.

Without torch, which takes two seconds to load: a process that only embeds by WPCA need not wait for it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import Maps
from ml.types import Rows

Learned = Mapping[str, NDArray[Any]]
"""Of one linear map: projection (d, D) and offset (d,)."""


def get_width(learned: Learned) -> int | None:
    """D, or None before the fit. The projection is (d, D)."""
    return learned["projection"].shape[1] if learned else None


def embed_linear(learned: Learned, rows: Rows, unit: bool) -> Rows:
    """(N, D) -> (N, d)."""
    z = project(rows, learned["projection"], learned["offset"])
    return z / norms(z)[:, None] if unit else z


def make_linear_maps(learned: Learned, rows: Rows, unit: bool) -> Maps:
    """Return the one linear map that is applied to (N, D) rows."""
    projection, offset = learned["projection"], learned["offset"]
    scale = np.float32(1) / norms(project(rows, projection, offset)) if unit else None
    return Maps.single(rows, projection, offset, scale)


def project(rows: Rows, projection: Rows, offset: Rows) -> Rows:
    """x -> L x - offset. rows: (N, D), projection: (d, D), offset: (d,). Returns (N, d)."""
    z: Rows = rows @ projection.T
    z -= offset
    return z


def norms(z: Rows) -> Rows:
    """(N, d) -> (N,), none of them 0."""
    lengths: Rows = np.maximum(np.linalg.norm(z, axis=1), np.finfo(np.float32).tiny).astype(np.float32)
    return lengths
