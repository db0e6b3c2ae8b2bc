"""Minus the inner product."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ml.distances.base import Distance, Label
from ml.portable_embeddings import PortableEmbeddings
from ml.types import Rows


@dataclass(frozen=True)
class InnerProduct(Distance):
    """-<x, y>."""

    label: ClassVar[Label] = "ip"
    faiss_metric: ClassVar[Literal["L2", "INNER_PRODUCT"] | None] = "INNER_PRODUCT"
    spread_weight: ClassVar[float] = 0.5

    def distances(self, queries: Rows, gallery: Rows) -> NDArray[np.float32]:
        """Compute the distance of each query to each row of the gallery: (Q, d) and (N, d) -> (Q, N)."""
        q, g = self.transform_queries(queries).astype(np.float64), gallery.astype(np.float64)
        product = q @ g.T
        return (-product).astype(np.float32)

    def paired_distances(self, first: Rows, second: Rows) -> NDArray[np.float32]:
        """Compute the distance of each row to the row at the same position: (P, d) and (P, d) -> (P,)."""
        products = np.einsum("pd,pd->p", self.transform_queries(first), second, dtype=np.float64)
        return np.asarray(-products, np.float32)

    def to_portable(self, rows: Rows) -> PortableEmbeddings:
        """Return (N, d) embeddings as they are, to be compared by "ip"."""
        return PortableEmbeddings(rows, "ip")
