"""The contract of an index, and what the indexes of this package share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ml import registry
from ml.distances import EUCLIDEAN, Distance
from ml.errors import NotFinite, WrongShape
from ml.types import Ids, Rows

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest faces of each query, nearest first, ties by id.

    ids: (Q, k) int64, -1 where there are fewer than k faces
    distances: (Q, k) float32, smaller is more alike, +inf where there is no face
    fraction: (Q,) float64: distances computed (to centroids and to faces) over the number of faces, as in 003
    m: number of cells probed
    """

    ids: Ids
    distances: NDArray[np.float32]
    fraction: NDArray[np.float64]
    m: int


@dataclass(frozen=True)
class IndexOptions:
    """How an index is built.

    p: number of cells; None: as suits the rows that it is trained on; m: cells that a search probes by default
    folder: where an index may keep a file of its own; further: options that only this index has, by name
    """

    p: int | None = None
    m: int | None = None
    device: Device = "auto"
    seed: int = 0
    folder: Path | None = None
    further: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Index(Protocol):
    """A searchable copy of the embeddings of one deployment. It can be deleted and rebuilt from the tables.

    Nothing here assumes that the vectors lie in this process: an engine on another host satisfies the contract too. It
    may add vectors asynchronously until `finish_build` returns, and its snapshot may only name a remote collection.

    Searches and reads of ids or rows may run concurrently, but not during a change: the caller holds a lock that they
    share.
    """

    @classmethod
    def suits(cls, cells: int, metric: Distance) -> bool:
        """Whether `ml.indexes.build` chooses this index for so many cells (1 for a small collection) and this metric.

        An index that returns False is built only if it is named.
        """

    @classmethod
    def create(cls, dim: int, metric: Distance, options: IndexOptions) -> Self:
        """Create an empty index of vectors with `dim` numbers. Raises WrongShape, Unavailable."""

    @classmethod
    def restore(cls, header: dict[str, Any], body: BinaryIO, device: Device) -> Self:
        """Restore an index from the snapshot that `save` wrote. Raises KeyError or TypeError for another header."""

    @property
    def dim(self) -> int:
        """Numbers in a vector."""

    @property
    def metric(self) -> Distance:
        """The distance by which neighbours are ranked."""

    @property
    def cells(self) -> int:
        """The number of cells, p; 1 for a flat index."""

    @property
    def default_m(self) -> int:
        """The number of cells to probe if a search states none."""

    @property
    def default_candidates(self) -> int | None:
        """How many faces the second stage ranks if a search states none; None: the index has one stage."""

    def __len__(self) -> int: ...

    def ids(self) -> Ids:
        """Return the ids in the index, sorted: (N,)."""

    def rows(self, ids: Ids) -> Rows:
        """Return the (n, dim) vectors of (n,) ids, bit for bit as added. Raises WrongShape if one is missing."""

    def add(self, ids: Ids, rows: Rows) -> None:
        """Add (n, dim) vectors under (n,) ids; an id that is present is replaced. Raises WrongShape, NotFinite."""

    def remove(self, ids: Ids) -> None:
        """Remove these (n,) ids; ids that are not present are ignored."""

    def search(
        self, queries: Rows, k: int, *, m: int | None = None, allowed: Ids | None = None, candidates: int | None = None
    ) -> Neighbours:
        """Find the k nearest faces of each of (Q, dim) queries in the m nearest cells (m = p: exhaustive).

        allowed: (n,) ids to search among; None: all
        candidates: how many faces the second stage of an index with two stages ranks; None: its default, or all faces
            if m = p. An index with one stage ignores it.
        Raises WrongShape, NotFinite.
        """

    def search_many(self, queries: Rows, k: int) -> Neighbours:
        """Find the k nearest faces of each of (Q, dim) queries as `search` does by default, for a measurement.

        It may be faster than `search` with many queries, and its distances may differ from those of `search` by 1e-5 of
        the vectors' squared lengths. Raises WrongShape, NotFinite.
        """

    def needs_rebuild(self) -> bool:
        """Whether the index has outgrown its cells or they are unbalanced, so that a new build would help."""

    def has_lost_rows(self) -> bool:
        """Whether it keeps values fitted to rows of which so many are removed that they may be computed from these.

        It needs a rebuild then, however large it is.
        """

    def finish_build(self) -> None:
        """Wait until all added vectors can be searched, and take the present size as the size it was built for."""

    def save(self, path: Path) -> str:
        """Write a snapshot in one move and return its SHA-256 in hex, which `ml.indexes.load` requires."""


class LocalIndex(ABC):
    """An index in this process: checks its input, and leaves storing and scanning to subclasses."""

    def __init__(self, dim: int, metric: Distance = EUCLIDEAN) -> None:
        self._dim, self._metric = dim, metric

    @property
    def dim(self) -> int:
        """Numbers in a vector."""
        return self._dim

    @property
    def metric(self) -> Distance:
        """The distance by which neighbours are ranked."""
        return self._metric

    @property
    @abstractmethod
    def cells(self) -> int:
        """The number of cells, p; 1 for a flat index."""

    @property
    @abstractmethod
    def default_m(self) -> int:
        """The number of cells to probe if a search states none."""

    @property
    def default_candidates(self) -> int | None:
        """See `Index.default_candidates`."""
        return None

    @abstractmethod
    def remove(self, ids: Ids) -> None:
        """Remove these (n,) ids; ids that are not present are ignored."""

    @abstractmethod
    def needs_rebuild(self) -> bool:
        """Whether a new build would help. See `Index.needs_rebuild`."""

    def has_lost_rows(self) -> bool:
        """See `Index.has_lost_rows`."""
        return False

    @abstractmethod
    def finish_build(self) -> None:
        """Take the present size as the size the index was built for. See `Index.finish_build`."""

    @abstractmethod
    def _add(self, ids: Ids, rows: Rows) -> None: ...

    @abstractmethod
    def _search(self, queries: Rows, k: int, m: int, allowed: Ids | None) -> Neighbours: ...

    def _take_out(self, ids: Ids) -> None:
        """Take those of (n,) ids out that are present, since other rows replace theirs."""
        self.remove(ids)

    def add(self, ids: Ids, rows: Rows) -> None:
        """Add (n, dim) vectors under (n,) ids; an id that is present is replaced. Raises WrongShape, NotFinite."""
        self._check(rows)
        if ids.shape != (len(rows),) or len(np.unique(ids)) != len(ids) or (ids < 0).any():
            raise WrongShape("ids", f"{len(rows)} different numbers from 0 up", ids.shape)
        if len(rows):
            self._take_out(ids)
            self._add(ids.astype(np.int64), np.ascontiguousarray(rows, np.float32))

    def search(
        self, queries: Rows, k: int, *, m: int | None = None, allowed: Ids | None = None, candidates: int | None = None
    ) -> Neighbours:
        """Find the k nearest faces of each of (Q, dim) queries in the m nearest cells (m = p: exhaustive).

        allowed: (n,) ids to search among; None: all. `candidates` has no effect. Raises WrongShape, NotFinite.
        """
        queries, m = self._prepare_search(queries, k, m)
        return self._search(queries, k, m, allowed)

    def search_many(self, queries: Rows, k: int) -> Neighbours:
        """Find the k nearest faces of each of (Q, dim) queries. See `Index.search_many`."""
        return self.search(queries, k)

    def _prepare_search(self, queries: Rows, k: int, m: int | None) -> tuple[Rows, int]:
        """Check the queries, and return them as stored rows are compared with them, with the cells to probe."""
        self._check(queries)
        if k < 1:
            raise WrongShape("k", "1 or more", k)
        m = max(1, min(self.default_m if m is None else m, self.cells))
        return np.ascontiguousarray(self.metric.transform_queries(queries), np.float32), m

    def _header(self, state: dict[str, Any]) -> dict[str, Any]:
        """The header of a snapshot. state: what a subclass needs besides its vectors."""
        name = registry.name_of(type(self))
        return {"kind": name, "dim": self.dim, "metric": self.metric.to_dict(), "state": state}

    def _check(self, rows: Rows) -> None:
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise WrongShape("vectors", f"(N, {self.dim})", rows.shape)
        if np.count_nonzero(np.isfinite(rows)) < rows.size:
            raise NotFinite("a vector")
