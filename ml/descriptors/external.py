"""Vectors that a client imports: the descriptors of a recogniser that this installation does not run."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ml.descriptors.base import Descriptor
from ml.errors import CannotDescribe, WrongShape
from ml.options import option
from ml.types import Crops, Rows

MAX_DIM = 16_384
MAX_ABSOLUTE_VALUE = 1e15
"""The squares of larger numbers, and their sums, would not fit into float32."""
MIN_NORM = 1e-15

Metric = Literal["l2", "cosine"]


@dataclass(frozen=True, kw_only=True)
class External(Descriptor):
    """Vectors from outside. There is no photo behind them, so nothing can be described by this descriptor.

    Two descriptors with another recogniser, size or metric are different ones: no model fits both.
    """

    recogniser: str = option(
        "external", "what made the vectors: the name of a recogniser and its version", server_only=True
    )
    size: int = option(512, "numbers of a vector", low=1, high=MAX_DIM)
    metric: Metric = option("cosine", "what compares two vectors; cosine: only their directions count")
    is_external: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_DIM:
            raise WrongShape("size", f"1 to {MAX_DIM:,}", self.size)
        if self.metric not in ("l2", "cosine"):
            raise WrongShape("metric", "l2 or cosine", repr(self.metric))

    @property
    def dim(self) -> int:
        return self.size

    def describe(self, crops: Crops) -> Rows:
        """Refuse (N, ...) crops. Raises CannotDescribe."""
        raise CannotDescribe(self.recogniser, self.size)

    def _describe(self, crops: Crops) -> Rows:
        raise CannotDescribe(self.recogniser, self.size)

    def find_fault(self, rows: Rows) -> list[str | None]:
        """Return for each of (N, dim) rows why it cannot be compared: NOT_FINITE, OUT_OF_RANGE, ZERO_VECTOR or None."""
        largest = np.abs(rows).max(axis=1, initial=0)
        faults: list[str | None] = [None] * len(rows)
        for i in np.flatnonzero(~(largest <= MAX_ABSOLUTE_VALUE)):  # NaN is not less
            faults[i] = "OUT_OF_RANGE" if np.isfinite(largest[i]) else "NOT_FINITE"
        if self.metric == "cosine":
            for i in np.flatnonzero(largest < MIN_NORM):
                faults[i] = "ZERO_VECTOR"
        return faults

    def normalise(self, rows: Rows) -> Rows:
        """Return (N, dim) float32 rows as they are stored: of unit length if only their directions count."""
        rows = np.ascontiguousarray(rows, np.float32)
        if self.metric == "l2":
            return rows
        norms = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        unit: Rows = (rows / np.maximum(norms, np.finfo(np.float64).tiny)).astype(np.float32)
        return unit
