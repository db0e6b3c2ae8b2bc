"""Minus an inner product in which some numbers count negative (Sub-SML)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ml.distances.inner_product import InnerProduct
from ml.errors import WrongShape
from ml.portable_embeddings import PortableEmbeddings
from ml.types import Rows

FLOAT32_ROUNDING = 2.0**-24
"""Relative."""


@dataclass(frozen=True)
class Signed(InnerProduct):
    """-<x, y>, in which the last `negative` numbers (1 or more) count negative. Raises WrongShape."""

    negative: int = 1
    spread_weight: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if self.negative < 1:
            raise WrongShape("negative", "1 or more numbers", self.negative)

    def transform_queries(self, rows: Rows) -> Rows:
        """Change the sign of the last numbers of (Q, d) queries: (Q, d)."""
        return np.concatenate([rows[:, : -self.negative], -rows[:, -self.negative :]], axis=1)

    def to_portable(self, rows: Rows) -> PortableEmbeddings:
        """Convert (N, d) embeddings for comparison by "ip" if the last two numbers have the same sum in all of them.

        <p, p'> + g g' - h h' with g + h = c for all is <p, p'> + c (t + t') / 2 with t = g - h. No inner product equals
        that, since it has a negative direction; but (R + s / R) (R + s' / R) = R^2 + s + s' + s s' / R^2 comes as near
        as one likes with s = c (t - middle) / 2. R is chosen so that the rounding of float32 equals the remainder.
        """
        whole = rows.astype(np.float64)
        sums = whole[:, -2:].sum(1)
        if self.negative != 1 or np.ptp(sums) > 1e-4 * np.abs(sums).max():
            formula = f"signed: greater is nearer; of the inner product the last {self.negative} columns count negative"
            return PortableEmbeddings(rows, formula)
        own = sums.mean() * (whole[:, -2] - whole[:, -1]) / 2
        own -= (own.max() + own.min()) / 2
        largest = max(float(np.abs(own).max()), 1e-12)
        square = largest / FLOAT32_ROUNDING**0.5
        root = np.sqrt(square)
        extra_column = (root + own / root)[:, None]
        extended = np.concatenate([whole[:, :-2], extra_column], axis=1).astype(np.float32)
        max_error = largest**2 / square + 3 * FLOAT32_ROUNDING * square
        return PortableEmbeddings(extended, "ip", {"signed": rows}, max_error)
