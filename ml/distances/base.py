"""The interface of a distance."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ml import registry
from ml.portable_embeddings import PortableEmbeddings
from ml.types import Ids, Rows

Floats = NDArray[np.float64]
Label = Literal["l2", "ip", "average"]
PAIRS_PER_BLOCK = 1024
MAX_DENSE_RATIO = 64
"""If the squared number of rows is below this many times the number of pairs, the full matrix is faster than pairs."""


@dataclass(frozen=True)
class Distance(ABC):
    """A distance between embeddings: smaller always means more alike.

    All are computed in float64 and returned in float32, which hides nearly all rounding: equal faces tie, except for
    about one in 10^7 whose distance lies where float32 rounds up or down, and for photos nearly equal to the query.
    """

    label: ClassVar[Label]
    """The name in reports and manifests: "l2", "ip" or "average"."""
    faiss_metric: ClassVar[Literal["L2", "INNER_PRODUCT"] | None]
    """The metric of FAISS that ranks alike once queries have passed `transform_queries`; None if there is none."""
    is_euclidean: ClassVar[bool] = False
    """Whether equal faces lie at distance 0 and the faces of a person have a mean that is near to each of them."""
    spread_weight: ClassVar[float] = 0.0
    """How much of the spread of a person's faces is subtracted from the distance to their mean."""

    @abstractmethod
    def distances(self, queries: Rows, gallery: Rows) -> NDArray[np.float32]:
        """Compute the distance of each query to each row of the gallery: (Q, d) and (N, d) -> (Q, N)."""

    @abstractmethod
    def paired_distances(self, first: Rows, second: Rows) -> NDArray[np.float32]:
        """Compute the distance of each row to the row at the same position: (P, d) and (P, d) -> (P,)."""

    @abstractmethod
    def to_portable(self, rows: Rows) -> PortableEmbeddings:
        """Convert (N, d) embeddings into rows that any library can compare by L2 or inner product, where possible."""

    def pair_distances(self, rows: Rows, pairs: Ids) -> Floats:
        """Compute the distances of pairs of rows, in blocks since descriptors are wide: (N, d) and (P, 2) -> (P,).

        pairs: (P, 2) row numbers
        """
        if len(rows) ** 2 < MAX_DENSE_RATIO * len(pairs):
            return self.distances(rows, rows)[pairs[:, 0], pairs[:, 1]].astype(np.float64)
        distances = np.empty(len(pairs))
        for start in range(0, len(pairs), PAIRS_PER_BLOCK):
            ends = pairs[start : start + PAIRS_PER_BLOCK]
            distances[start : start + PAIRS_PER_BLOCK] = self.paired_distances(rows[ends[:, 0]], rows[ends[:, 1]])
        return distances

    def display_distance(self, distances: NDArray[Any]) -> NDArray[Any]:
        """Return (n, ...) distances as tables show them, of the same shape."""
        return distances

    def transform_queries(self, rows: Rows) -> Rows:
        """Return (Q, d) queries as they are compared with stored rows: (Q, d)."""
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the component's name and options, for JSON."""
        return {"name": registry.name_of(type(self)), "options": asdict(self)}


def load_distance(stored: dict[str, Any]) -> Distance:
    """Restore what `Distance.to_dict` returned, or the flat format of earlier versions. Raises KeyError, TypeError."""
    if "kind" in stored:
        stored = _convert_flat_format(stored)
    distance: Distance = registry.build("distances", stored["name"], **stored["options"])
    return distance


def _convert_flat_format(stored: dict[str, Any]) -> dict[str, Any]:
    """Earlier versions stored {"kind": "l2" | "ip" | "average", "negative", "blocks", "shares", "biases"}."""
    if stored["kind"] == "average":
        return {"name": "averaged", "options": {key: stored[key] for key in ("blocks", "shares", "biases")}}
    if stored["negative"]:
        return {"name": "signed", "options": {"negative": stored["negative"]}}
    return {"name": {"l2": "squared_euclidean", "ip": "inner_product"}[stored["kind"]], "options": {}}
