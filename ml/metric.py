"""How two embeddings are compared."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ml.types import Ids, Rows

Floats = NDArray[np.float64]
BLOCK = 1024
DENSE = 64
"""Where the squared number of rows is below so many times the pairs, all with all is faster than pair by pair."""
EPSILON = float(np.finfo(np.float64).eps)
Kind = Literal["l2", "ip", "average"]


@dataclass(frozen=True)
class Metric:
    """A distance: smaller always means more alike.

    l2: the *squared* Euclidean distance
    ip: minus the inner product, in which the last `negative` numbers count negative
    average: of the inner products c_i of each of the `blocks` that lie one after the other in a row, ln(1 - g) - ln g
        with g = sum_i shares_i sigmoid(c_i + biases_i) (CoSiM, 000, equation 8): the log odds of "not the same"
    """

    kind: Kind
    negative: int = 0
    blocks: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    biases: tuple[float, ...] = ()

    def distances(self, queries: Rows, gallery: Rows) -> NDArray[np.float32]:
        """(Q, d) and (N, d) -> (Q, N): computed in float64 and kept in float32, which hides nearly all rounding.

        Equal faces tie but for one in some 10^7, whose distance lies where float32 rounds up or down; more often only
        where a photo is nearly the query's own. l2: what cannot be told from 0 in float64 is 0: the query's copies tie.
        """
        q, g = self.query(queries).astype(np.float64), gallery.astype(np.float64)
        if self.kind == "average":
            return self._odds([q[:, at] @ g[:, at].T for at in self.parts])
        product = q @ g.T
        if self.kind == "ip":
            return (-product).astype(np.float32)
        sizes = (q**2).sum(1)[:, None] + (g**2).sum(1)[None]
        squared = sizes - 2 * product
        squared[squared <= q.shape[1] * EPSILON * sizes] = 0
        return np.asarray(squared, np.float32)

    def paired(self, first: Rows, second: Rows) -> NDArray[np.float32]:
        """(P, d) and (P, d) -> (P,): of each row to the one beside it."""
        x, y = self.query(first).astype(np.float64), second.astype(np.float64)
        if self.kind == "average":
            return self._odds([(x[:, at] * y[:, at]).sum(1) for at in self.parts])
        apart = ((x - y) ** 2).sum(1) if self.kind == "l2" else -(x * y).sum(1)
        return np.asarray(apart, np.float32)

    def apart(self, rows: Rows, pairs: Ids) -> Floats:
        """(N, d) and (P, 2) places in them -> (P,), a few at a time: descriptors are wide."""
        if len(rows) ** 2 < DENSE * len(pairs):
            return self.distances(rows, rows)[pairs[:, 0], pairs[:, 1]].astype(np.float64)
        found = np.empty(len(pairs))
        for at in range(0, len(pairs), BLOCK):
            ends = pairs[at : at + BLOCK]
            found[at : at + BLOCK] = self.paired(rows[ends[:, 0]], rows[ends[:, 1]])
        return found

    def told(self, distances: NDArray[Any]) -> NDArray[Any]:
        """As tables tell them: Euclidean distances themselves and not their squares (000, Table 6)."""
        return np.sqrt(distances) if self.kind == "l2" else distances

    def query(self, rows: Rows) -> Rows:
        """What is multiplied with stored rows as they are. (Q, d) -> (Q, d)."""
        if not self.negative:
            return rows
        return np.concatenate([rows[:, : -self.negative], -rows[:, -self.negative :]], axis=1)

    @property
    def parts(self) -> tuple[slice, ...]:
        """Where each block lies in a row."""
        ends = np.cumsum(self.blocks).tolist()
        return tuple(slice(end - width, end) for end, width in zip(ends, self.blocks, strict=True))

    def _odds(self, products: list[Floats]) -> NDArray[np.float32]:
        logits = [c + b for c, b in zip(products, self.biases, strict=True)]
        same = [np.log(a) - np.logaddexp(0, -z) for a, z in zip(self.shares, logits, strict=True) if a > 0]
        other = [np.log(a) - np.logaddexp(0, z) for a, z in zip(self.shares, logits, strict=True) if a > 0]
        return np.asarray(np.logaddexp.reduce(other) - np.logaddexp.reduce(same), np.float32)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Self:
        listed = {name: tuple(told[name]) for name in ("blocks", "shares", "biases")}
        return cls(told["kind"], told["negative"], **listed)


EUCLIDEAN = Metric("l2")
INNER_PRODUCT = Metric("ip")
