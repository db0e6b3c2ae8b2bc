"""What every index promises."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ml.errors import NotFinite, WrongShape
from ml.metric import EUCLIDEAN, Metric
from ml.types import Ids, Rows


@dataclass(frozen=True, eq=False)
class Found:
    """The nearest of each query, nearest first, ties by id.

    ids: (Q, k) int64, -1 where there are fewer than k; distances: (Q, k) float32, +inf there (see `Metric`)
    fraction: (Q,) float64: distances computed (centroids + scanned) over the number of faces, as 003 counts them
    m: cells probed
    """

    ids: Ids
    distances: NDArray[np.float32]
    fraction: NDArray[np.float64]
    m: int


class Index(ABC):
    """A searchable copy of the embeddings of one deployment; can be thrown away and rebuilt.

    Searches may run at the same time as one another, but not while it is changed: the one that writes holds the
    lock that searches share (`app/serving`).
    """

    def __init__(self, dim: int, metric: Metric = EUCLIDEAN) -> None:
        self.dim, self.metric = dim, metric

    @property
    @abstractmethod
    def cells(self) -> int:
        """p; 1 for a flat index."""

    @property
    @abstractmethod
    def default_m(self) -> int:
        """m where a search names none."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def ids(self) -> Ids:
        """The ids held, sorted."""

    @abstractmethod
    def rows(self, ids: Ids) -> Rows:
        """The vectors of these ids, bit for bit as they were added. Raises WrongShape where one is not held."""

    @abstractmethod
    def _add(self, ids: Ids, rows: Rows) -> None: ...

    @abstractmethod
    def remove(self, ids: Ids) -> None:
        """Takes out those that are there; others are passed over."""

    @abstractmethod
    def _search(self, queries: Rows, k: int, m: int, allowed: Ids | None) -> Found: ...

    @abstractmethod
    def needs_rebuild(self) -> bool:
        """Grown past its cells, or out of balance: worth building anew beside this one."""

    @abstractmethod
    def settle(self) -> None:
        """Told once all rows are in that a sample was to stand for: it has not grown since."""

    @abstractmethod
    def save(self, path: Path) -> str:
        """Writes a snapshot in one move and returns its SHA-256 in hex; `ml.indexes.load` wants it back."""

    def add(self, ids: Ids, rows: Rows) -> None:
        """Adds these; an id that is already there is replaced. Raises WrongShape, NotFinite."""
        self._check(rows)
        if ids.shape != (len(rows),) or len(np.unique(ids)) != len(ids) or (ids < 0).any():
            raise WrongShape("ids", f"{len(rows)} different numbers from 0 up", ids.shape)
        if len(rows):
            self.remove(ids)
            self._add(ids.astype(np.int64), np.ascontiguousarray(rows, np.float32))

    def search(self, queries: Rows, k: int, *, m: int | None = None, allowed: Ids | None = None) -> Found:
        """The k nearest of each of (Q, dim) queries, in the m nearest cells (m = p: exhaustive),
        among the `allowed` ids only where given. Raises WrongShape, NotFinite."""
        self._check(queries)
        if k < 1:
            raise WrongShape("k", "1 or more", k)
        m = max(1, min(self.default_m if m is None else m, self.cells))
        return self._search(np.ascontiguousarray(self.metric.query(queries), np.float32), k, m, allowed)

    def _check(self, rows: Rows) -> None:
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise WrongShape("vectors", f"(N, {self.dim})", rows.shape)
        if not np.isfinite(rows).all():
            raise NotFinite("a vector")
