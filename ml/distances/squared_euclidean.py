"""The squared Euclidean distance."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ml.distances.base import Distance, Label
from ml.portable_embeddings import PortableEmbeddings
from ml.types import Rows

EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class SquaredEuclidean(Distance):
    """|x - y|^2. What float64 cannot distinguish from 0 is 0, so that copies of the query tie."""

    label: ClassVar[Label] = "l2"
    faiss_metric: ClassVar[Literal["L2", "INNER_PRODUCT"] | None] = "L2"
    is_euclidean: ClassVar[bool] = True

    def distances(self, queries: Rows, gallery: Rows) -> NDArray[np.float32]:
        """Compute the distance of each query to each row of the gallery: (Q, d) and (N, d) -> (Q, N)."""
        q, g = queries.astype(np.float64), gallery.astype(np.float64)
        sizes = (q**2).sum(1)[:, None] + (g**2).sum(1)[None]
        squared = sizes - 2 * (q @ g.T)
        squared[squared <= q.shape[1] * EPSILON * sizes] = 0
        return np.asarray(squared, np.float32)

    def paired_distances(self, first: Rows, second: Rows) -> NDArray[np.float32]:
        """Compute the distance of each row to the row at the same position: (P, d) and (P, d) -> (P,)."""
        difference = np.subtract(first, second, dtype=np.float64)
        return np.asarray(np.einsum("pd,pd->p", difference, difference), np.float32)

    def display_distance(self, distances: NDArray[Any]) -> NDArray[Any]:
        """Return Euclidean distances, not their squares (000, Table 6), of (n, ...) squared ones."""
        roots: NDArray[Any] = np.sqrt(distances)
        return roots

    def to_portable(self, rows: Rows) -> PortableEmbeddings:
        """Return (N, d) embeddings as they are, to be compared by "l2"."""
        return PortableEmbeddings(rows, "l2")
