"""Person templates: the mean of a person's embeddings, and the distance of a face to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.distances import Distance
from ml.types import Ids, Rows

Floats = NDArray[np.float64]
BYTES_PER_DIM = 12
"""The memory of a template: its sum in float64 and its mean in float32."""


@dataclass(frozen=True, eq=False)
class PersonTemplate:
    """The sums over a person's faces that a template distance needs.

    count: faces; total: (d,) float64 sum of their embeddings; squares: sum of their squared norms
    """

    count: int
    total: Floats
    squares: float

    @classmethod
    def from_rows(cls, rows: Rows) -> Self:
        """Sum the (n, d) embeddings of one person; n must be above 0."""
        exact = rows.astype(np.float64)
        return cls(len(rows), exact.sum(0), float((exact**2).sum()))

    def merged_with(self, other: Self) -> Self:
        """Return the template of the faces of both."""
        return type(self)(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def without(self, row: Rows) -> Self:
        """Return the template without one face. row: (d,) its embedding; at least one other face must remain."""
        exact = row.astype(np.float64)
        return type(self)(self.count - 1, self.total - exact, self.squares - float(exact @ exact))

    @cached_property
    def mean(self) -> Rows:
        """(d,)"""
        return (self.total / self.count).astype(np.float32)

    @property
    def spread(self) -> float:
        """The mean squared distance of the faces from their mean."""
        mean = self.total / self.count
        return max(0.0, self.squares / self.count - float(mean @ mean))


def template_distances(metric: Distance, queries: Rows, templates: Sequence[PersonTemplate]) -> Floats:
    """Compute the (n,) distances of (n, d) queries to n templates, one each.

    An inner product also depends on the length of the mean, which shrinks as a person's faces spread. Half the spread
    is therefore subtracted, so that embeddings of equal length are ordered as by their squared distances.
    """
    if not len(templates):
        return np.empty(0)
    means = np.concatenate([template.mean for template in templates]).reshape(len(templates), -1)
    distances = metric.paired_distances(queries, means).astype(np.float64)
    if not metric.spread_weight:
        return distances
    return np.asarray(distances - metric.spread_weight * np.array([template.spread for template in templates]))


def group_template_distances(metric: Distance, queries: Rows, rows: Rows, starts: Ids) -> Floats:
    """Compute the (Q, P) distances of (Q, d) queries to the templates of P people, as `template_distances` does.

    rows: (n, d) their faces, in the order of the people; starts: (P,) the first face of each
    """
    counts = np.diff(starts, append=len(rows))
    exact = rows.astype(np.float64)
    means = np.add.reduceat(exact, starts) / counts[:, None]
    distances = metric.distances(queries, means.astype(np.float32)).astype(np.float64)
    if not metric.spread_weight:
        return distances
    squares = np.add.reduceat((exact**2).sum(1), starts) / counts
    return np.asarray(distances - metric.spread_weight * np.maximum(0.0, squares - (means**2).sum(1)))
