"""The interface of a map of a gallery."""

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ml.errors import NotFinite, WrongShape
from ml.types import Rows

Coordinates = NDArray[np.float64]
"""(N, 2) the x and y of each face. They have no unit."""
MapMethod = Literal["pca", "tsne"]
MAP_METHODS: tuple[MapMethod, ...] = ("pca", "tsne")
MIN_FACES = 3


class GalleryMap(Protocol):
    """Places faces in the plane by their embeddings."""

    def locate(self, rows: Rows) -> Coordinates:
        """Return the coordinates of (n, d) embeddings: (n, 2). Raises WrongShape."""


def check_map_rows(rows: Rows) -> None:
    """Check that (N, d) rows can be mapped.

    Raises WrongShape if there are fewer than MIN_FACES or all are the same, NotFinite for NaN and infinity.
    """
    if rows.ndim != 2 or len(rows) < MIN_FACES:
        raise WrongShape("the embeddings of a map", f"({MIN_FACES} or more, d)", rows.shape)
    if not np.isfinite(rows).all():
        raise NotFinite("an embedding")
    if (rows == rows[:1]).all():
        raise WrongShape("the embeddings of a map", "different from each other", f"{len(rows)} equal ones")
