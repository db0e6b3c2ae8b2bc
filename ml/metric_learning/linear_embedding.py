"""Embed by one linear map: z = L x - offset, optionally divided by its norm.

This module does not import torch, which takes two seconds to load, so that a process that only embeds starts fast.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.embedders.base import Embedder, Maps
from ml.errors import CannotGoOn, NotFitted
from ml.types import Rows

Learned = Mapping[str, NDArray[Any]]
"""The arrays of one linear map: projection (d, D) and offset (d,)."""


def get_width(learned: Learned) -> int | None:
    """Return D, the width of the (d, D) projection; None before the fit."""
    return learned["projection"].shape[1] if learned else None


def embed_linear(learned: Learned, rows: Rows, unit: bool) -> Rows:
    """Embed (N, D) rows: (N, d). unit: divide each embedding by its norm"""
    z = project(rows, learned["projection"], learned["offset"])
    return z / norms(z)[:, None] if unit else z


def make_linear_maps(learned: Learned, rows: Rows, unit: bool) -> Maps:
    """Return the one linear map that is applied to (N, D) rows."""
    projection, offset = learned["projection"], learned["offset"]
    scale = np.float32(1) / norms(project(rows, projection, offset)) if unit else None
    return Maps.single(rows, projection, offset, scale)


def project(rows: Rows, projection: Rows, offset: Rows) -> Rows:
    """Compute L x - offset of (N, D) rows: (N, d). projection: L (d, D); offset: (d,)"""
    z: Rows = rows @ projection.T
    z -= offset
    return z


def norms(z: Rows) -> Rows:
    """Return the (N,) norms of (N, d) rows; never 0."""
    lengths: Rows = np.maximum(np.linalg.norm(z, axis=1), np.finfo(np.float32).tiny).astype(np.float32)
    return lengths


def require_linear_map(owner: Embedder, model: Embedder) -> tuple[Rows, Rows]:
    """Return the model's projection (d, D) and offset (d,).

    Raises CannotGoOn if it is not one linear map of the row, NotFitted.
    """
    linear = model.linear_map()
    if linear is None:
        raise CannotGoOn(f"{type(owner).__name__} can start from one linear map, which {type(model).__name__} is not")
    return linear


def get_linear_map(embedder: Embedder, learned: Learned) -> tuple[Rows, Rows]:
    """Return the projection (d, D) and offset (d,) that an embedder has learned. Raises NotFitted."""
    if not learned:
        raise NotFitted(type(embedder).__name__)
    return learned["projection"], learned["offset"]
