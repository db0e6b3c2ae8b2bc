"""Embeddings for programs that compute scores themselves: by L2 or inner product wherever that is possible."""

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from ml.types import Rows


@dataclass(frozen=True, eq=False)
class PortableEmbeddings:
    """rows: (N, d) float32, which rank faces by `metric` as the embedder's own distance does

    metric: "l2" (smaller is nearer), "ip" (greater is nearer), or, if neither ranks alike, a sentence that says how
    extra: arrays that the sentence names
    max_error: how far "ip" may be from a constant plus the embedder's score; 0 if it is the score itself
    """

    rows: Rows
    metric: str
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)
    max_error: float = 0.0
