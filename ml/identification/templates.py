"""One embedding for a person: the mean of their faces, and how far a face is from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ml.identification.decision_rule import DecisionRule
from ml.metric import Metric
from ml.types import Ids, Rows

Floats = NDArray[np.float64]


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
        """rows: (n, d) embeddings of one person, n above 0."""
        exact = rows.astype(np.float64)
        return cls(len(rows), exact.sum(0), float((exact**2).sum()))

    def without(self, row: Rows) -> Self:
        """The person without one of the faces. row: (d,) its embedding; at least one other face is left."""
        exact = row.astype(np.float64)
        return type(self)(self.count - 1, self.total - exact, self.squares - float(exact @ exact))

    @property
    def mean(self) -> Floats:
        """(d,)"""
        return self.total / self.count

    @property
    def spread(self) -> float:
        """The mean squared distance of the faces from their mean."""
        mean = self.mean
        return max(0.0, self.squares / self.count - float(mean @ mean))


def template_distances(
    metric: Metric, rule: DecisionRule, queries: Rows, templates: Sequence[PersonTemplate]
) -> Floats:
    """(n, d) queries, each to its own of n templates -> (n,) distances.

    The mean of n faces lies nearer to everybody than a single face does, by the variance W within people times
    (1 - 1/n); that much is added, so that people with many photos do not attract strangers. An inner product also
    depends on the length of the mean, which shrinks as a person's faces spread: it is brought to that of a face. Other
    distances are to the plain mean.
    """
    if not len(templates):
        return np.empty(0)
    means = np.stack([template.mean for template in templates]).astype(np.float32)
    distances = metric.paired(queries, means).astype(np.float64)
    if metric.kind == "average" or metric.negative:
        return distances
    nearer = rule.within_variance * (1 - 1 / np.array([template.count for template in templates]))
    if metric.kind == "l2":
        return np.asarray(distances + nearer)
    spread = np.array([template.spread for template in templates])
    return np.asarray(distances - (spread - nearer) / 2)


def pooled_within_variance(rows: Rows, people: Ids) -> float:
    """The variance of embeddings within people: squared distances from their means, over the degrees of freedom.

    rows: (N, d); people: (N,) whose each is, -1 unknown. 0 where nobody has two faces.
    """
    known = people >= 0
    _, own, counts = np.unique(people[known], return_inverse=True, return_counts=True)
    if not (counts > 1).any():
        return 0.0
    exact = rows[known].astype(np.float64)
    totals = np.zeros((len(counts), rows.shape[1]))
    np.add.at(totals, own, exact)
    within = (exact**2).sum() - ((totals**2).sum(1) / counts).sum()
    return float(max(0.0, within) / (counts - 1).sum())
