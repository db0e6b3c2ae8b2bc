"""Embeddings for those who score with code of their own: by L2 or by inner product wherever that can be."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.metric import Metric
from ml.types import Rows

ROUNDING = 2.0**-24
"""Of float32, relative."""


@dataclass(frozen=True, eq=False)
class PortableEmbeddings:
    """rows: (N, d) float32, by whose `metric` faces rank as by the embedder's own

    metric: "l2" (nearer is smaller), "ip" (nearer is greater), or where neither does, a sentence that says how
    extra: arrays that the sentence names
    off: how far "ip" may be from a constant plus the embedder's score; 0 where it is the score itself
    """

    rows: Rows
    metric: str
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)
    off: float = 0.0


def to_portable(rows: Rows, metric: Metric) -> PortableEmbeddings:
    """rows: (N, d) float32, compared by `metric`."""
    if metric.kind == "average":
        return _average(rows, metric)
    if metric.negative:
        return _signed(rows, metric)
    return PortableEmbeddings(rows, metric.kind)


def _average(rows: Rows, metric: Metric) -> PortableEmbeddings:
    """A sum of sigmoids rises with each inner product and with no fixed weighing of them, unless it is of one."""
    [heard, *more] = [at for at, share in zip(metric.parts, metric.shares, strict=True) if share > 0]
    if not more:
        return PortableEmbeddings(np.ascontiguousarray(rows[:, heard]), "ip")
    formula = (
        "average: greater is nearer; sum over i of shares[i] * sigmoid(p_i + biases[i]), p_i the inner product of the"
        " two faces' columns of x from ends[i-1] (0 for the first) to ends[i]"
    )
    extra = {"ends": np.cumsum(metric.blocks), "shares": np.array(metric.shares), "biases": np.array(metric.biases)}
    return PortableEmbeddings(rows, formula, extra)


def _signed(rows: Rows, metric: Metric) -> PortableEmbeddings:
    """<p, p'> + g g' - h h' with g + h the same c for all, which is <p, p'> + c (t + t') / 2 with t = g - h (Sub-SML).

    No inner product is that, for it has a negative direction; but (R + s / R) (R + s' / R) = R^2 + s + s' + s s' / R^2
    comes as near as one likes with s = c (t - middle) / 2. R is where float32 rounds away as much as is left over.
    """
    whole = rows.astype(np.float64)
    sums = whole[:, -2:].sum(1)
    if metric.negative != 1 or np.ptp(sums) > 1e-4 * np.abs(sums).max():
        formula = f"signed: greater is nearer; of the inner product the last {metric.negative} columns count negative"
        return PortableEmbeddings(rows, formula)
    own = sums.mean() * (whole[:, -2] - whole[:, -1]) / 2
    own -= (own.max() + own.min()) / 2
    largest = max(float(np.abs(own).max()), 1e-12)
    square = largest / ROUNDING**0.5
    root = np.sqrt(square)
    beside = (root + own / root)[:, None]
    extended = np.concatenate([whole[:, :-2], beside], axis=1).astype(np.float32)
    return PortableEmbeddings(extended, "ip", {"signed": rows}, largest**2 / square + 3 * ROUNDING * square)
