"""The log odds of an average of similarities (CoSiM)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ml.distances.base import Distance, Floats, Label
from ml.portable_embeddings import PortableEmbeddings
from ml.types import Rows


@dataclass(frozen=True)
class Averaged(Distance):
    """ln(1 - g) - ln g with g = sum_i shares_i sigmoid(c_i + biases_i): the log odds of "not the same".

    c_i is the inner product of the i-th block of numbers of the two faces. Source: CoSiM, 000, equation 8.
    blocks: number of values in each block, which lie one after the other; shares, biases: one for each block
    """

    blocks: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    biases: tuple[float, ...] = ()
    label: ClassVar[Label] = "average"
    faiss_metric: ClassVar[Literal["L2", "INNER_PRODUCT"] | None] = None

    def __post_init__(self) -> None:
        for name in ("blocks", "shares", "biases"):  # JSON has lists
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def columns(self) -> tuple[slice, ...]:
        """Where each block lies in a row."""
        ends = np.cumsum(self.blocks).tolist()
        return tuple(slice(end - width, end) for end, width in zip(ends, self.blocks, strict=True))

    def distances(self, queries: Rows, gallery: Rows) -> NDArray[np.float32]:
        """Compute the distance of each query to each row of the gallery: (Q, d) and (N, d) -> (Q, N)."""
        q, g = queries.astype(np.float64), gallery.astype(np.float64)
        return self._log_odds([q[:, block] @ g[:, block].T for block in self.columns])

    def paired_distances(self, first: Rows, second: Rows) -> NDArray[np.float32]:
        """Compute the distance of each row to the row at the same position: (P, d) and (P, d) -> (P,)."""
        x, y = first.astype(np.float64), second.astype(np.float64)
        return self._log_odds([(x[:, block] * y[:, block]).sum(1) for block in self.columns])

    def to_portable(self, rows: Rows) -> PortableEmbeddings:
        """Return (N, d) embeddings for "ip" if only one block has a share; else with a formula.

        A sum of sigmoids rises with each inner product, but with no fixed weighted sum of them.
        """
        [weighted, *others] = [block for block, share in zip(self.columns, self.shares, strict=True) if share > 0]
        if not others:
            return PortableEmbeddings(np.ascontiguousarray(rows[:, weighted]), "ip")
        formula = (
            "average: greater is nearer; sum over i of shares[i] * sigmoid(p_i + biases[i]), p_i the inner product of"
            " the two faces' columns of x from ends[i-1] (0 for the first) to ends[i]"
        )
        extra = {"ends": np.cumsum(self.blocks), "shares": np.array(self.shares), "biases": np.array(self.biases)}
        return PortableEmbeddings(rows, formula, extra)

    def _log_odds(self, products: list[Floats]) -> NDArray[np.float32]:
        logits = [c + b for c, b in zip(products, self.biases, strict=True)]
        same = [np.log(a) - np.logaddexp(0, -z) for a, z in zip(self.shares, logits, strict=True) if a > 0]
        other = [np.log(a) - np.logaddexp(0, z) for a, z in zip(self.shares, logits, strict=True) if a > 0]
        return np.asarray(np.logaddexp.reduce(other) - np.logaddexp.reduce(same), np.float32)
