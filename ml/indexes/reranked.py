"""Exact scores of candidates found by inner products: for the average form of CoSiM, which FAISS does not support."""

from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from ml.distances import INNER_PRODUCT, Distance, load_distance
from ml.distances.averaged import Averaged
from ml.errors import WrongShape
from ml.indexes.base import Device, IndexOptions, LocalIndex, Neighbours
from ml.indexes.common.inverted_lists import InvertedListIndex, Scan, first_k, read_lists
from ml.indexes.common.snapshot_file import write_snapshot
from ml.indexes.flat import FlatIndex
from ml.indexes.ivf import IvfIndex
from ml.types import Ids, Rows

CANDIDATE_FACTOR, MIN_CANDIDATES = 4, 200
"""Each list is searched for CANDIDATE_FACTOR times k candidates, and for at least MIN_CANDIDATES."""
MAX_BATCH_SCORES = 1 << 22
"""Query-face pairs scored at once, to bound the memory."""


class RerankedIndex(LocalIndex):
    """Scores the union of the candidates of all blocks together (the mass score) and of each block.

    Each row is held twice: whole, and block by block. With m = p every face is scored, whatever the lists find.
    p, m, device, seed: see `IndexOptions`
    """

    def __init__(
        self,
        dim: int,
        metric: Distance,
        *,
        p: int | None = None,
        m: int | None = None,
        device: Device = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__(dim, metric)
        if not isinstance(metric, Averaged) or sum(metric.blocks) != dim:
            raise WrongShape("metric", f"an average of blocks that sum to {dim}", metric)
        self._options = IndexOptions(p, m, device, seed)
        self._columns = metric.columns if p != 1 else ()
        self._whole = self._create_list(dim)
        self._blocks = [self._create_list(columns.stop - columns.start) for columns in self._columns]

    def _create_list(self, width: int) -> InvertedListIndex:
        index = FlatIndex if self._options.p == 1 else IvfIndex
        return index.create(width, INNER_PRODUCT, self._options)

    @classmethod
    def suits(cls, cells: int, metric: Distance) -> bool:
        """See `Index.suits`."""
        return isinstance(metric, Averaged)

    @classmethod
    def create(cls, dim: int, metric: Distance, options: IndexOptions) -> Self:
        """Create an empty index. Raises WrongShape unless the blocks of the metric sum to `dim`; Unavailable."""
        return cls(dim, metric, p=options.p, m=options.m, device=options.device, seed=options.seed)

    @classmethod
    def restore(cls, header: dict[str, Any], body: BinaryIO, device: Device) -> Self:
        """Restore the whole rows from the snapshot and rebuild the lists of the blocks from them."""
        state, lists = header["state"], read_lists(header, body)
        index = cls(header["dim"], load_distance(header["metric"]), device=device, **state["options"])
        index._whole.set_state(state["whole"], lists)
        if index._blocks and len(index):
            ids = index.ids()
            rows = index.rows(ids)
            for block, columns in zip(index._blocks, index._columns, strict=True):
                block.add(ids, np.ascontiguousarray(rows[:, columns]))
            index._whole.finish_build()
            index._whole.set_state(state["whole"], lists)
        return index

    @property
    def cells(self) -> int:
        return self._whole.cells

    @property
    def default_m(self) -> int:
        return self._whole.default_m

    def __len__(self) -> int:
        return len(self._whole)

    def ids(self) -> Ids:
        """Return the ids in the index, sorted: (N,)."""
        return self._whole.ids()

    def rows(self, ids: Ids) -> Rows:
        """Return the (n, dim) vectors of (n,) ids. Raises WrongShape if one is missing."""
        return self._whole.rows(ids)

    def needs_rebuild(self) -> bool:
        """Whether one of the lists needs a rebuild."""
        return any(lists.needs_rebuild() for lists in (self._whole, *self._blocks))

    def finish_build(self) -> None:
        """Take the present size as the size the cells were made for."""
        for lists in (self._whole, *self._blocks):
            lists.finish_build()

    def save(self, path: Path) -> str:
        """Write a snapshot of the whole rows and return its SHA-256 in hex."""
        options = {name: getattr(self._options, name) for name in ("p", "m", "seed")}
        header = self._header({"options": options, "whole": self._whole.state()})
        return write_snapshot(path, header | {"trained": self._whole.is_trained}, self._whole.write_body)

    def _add(self, ids: Ids, rows: Rows) -> None:
        self._whole.add(ids, rows)
        for block, columns in zip(self._blocks, self._columns, strict=True):
            block.add(ids, np.ascontiguousarray(rows[:, columns]))

    def _take_out(self, ids: Ids) -> None:
        """See `LocalIndex._take_out`: each of the lists replaces its own rows."""

    def remove(self, ids: Ids) -> None:
        """Remove these (n,) ids; ids that are not present are ignored."""
        for lists in (self._whole, *self._blocks):
            lists.remove(ids)

    def _search(self, queries: Rows, k: int, m: int, allowed: Ids | None) -> Neighbours:
        if m < self.cells and (allowed is None or len(allowed) * self.cells > m * len(self)):
            return self._search_candidates(queries, k, m, allowed)
        present = self.ids()
        among = present if allowed is None else present[np.isin(present, allowed)]
        rows = self.rows(among)
        step = max(1, MAX_BATCH_SCORES // max(1, len(among)))
        scans = [self._score(queries[start : start + step], among, rows, k) for start in range(0, len(queries), step)]
        fraction = np.full(len(queries), len(among) / max(1, len(self)))
        return _join(scans, k, fraction, self.cells)

    def _search_candidates(self, queries: Rows, k: int, m: int, allowed: Ids | None) -> Neighbours:
        count = max(CANDIDATE_FACTOR * k, MIN_CANDIDATES)
        candidates = [self._whole.search(queries, count, m=m, allowed=allowed)]
        for block, columns in zip(self._blocks, self._columns, strict=True):
            candidates.append(block.search(np.ascontiguousarray(queries[:, columns]), count, m=m, allowed=allowed))
        scans, scored = [], np.zeros(len(queries))
        for q in range(len(queries)):
            union = np.unique(np.concatenate([neighbours.ids[q] for neighbours in candidates]))
            union = union[union >= 0]
            scans.append(self._score(queries[q : q + 1], union, self.rows(union), k))
            scored[q] = len(union)
        fraction = np.sum([neighbours.fraction for neighbours in candidates], axis=0) + scored / max(1, len(self))
        return _join(scans, k, fraction, m)

    def _score(self, queries: Rows, ids: Ids, rows: Rows, k: int) -> Scan:
        distances = self.metric.distances(queries, rows)
        return first_k(distances, np.broadcast_to(ids, distances.shape), k)


def _join(scans: list[Scan], k: int, fraction: Rows, m: int) -> Neighbours:
    empty = (np.empty((0, k), np.float32), np.empty((0, k), np.int64))
    distances, ids = (np.concatenate(parts) for parts in zip(empty, *scans, strict=True))
    return Neighbours(ids, distances, np.asarray(fraction, np.float64), m)
