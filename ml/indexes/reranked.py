"""Exact scores of what inner products have found: for the average form of CoSiM, which no index knows."""

from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from ml.errors import WrongShape
from ml.indexes._faiss import Lists, nearest
from ml.indexes._storage import write
from ml.indexes.base import Found, Index
from ml.indexes.flat import Flat
from ml.indexes.ivf import Ivf
from ml.metric import INNER_PRODUCT, Metric
from ml.types import Ids, Rows

WIDER, LEAST = 4, 200
"""Each list is asked for WIDER times the wanted, at least for LEAST."""
SCORED = 1 << 22
"""Query-face pairs scored at once, for the memory's sake."""


class Reranked(Index):
    """The union of the nearest by all numbers together (the mass score) and by each block, scored exactly.

    Rows are held twice: whole, and block by block. m = p: every face is scored, whatever the lists would find.
    """

    def __init__(
        self,
        dim: int,
        metric: Metric,
        *,
        p: int | None = None,
        m: int | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__(dim, metric)
        if metric.kind != "average" or sum(metric.blocks) != dim:
            raise WrongShape("metric", f"an average of blocks that sum to {dim}", metric)
        self._places = metric.parts if p != 1 else ()
        self._options: dict[str, Any] = {"p": p, "m": m, "device": device, "seed": seed}
        self._whole = self._made(dim)
        self._parts = [self._made(at.stop - at.start) for at in self._places]

    def _made(self, width: int) -> Lists:
        flat = self._options["p"] == 1
        return Flat(width, INNER_PRODUCT) if flat else Ivf(width, INNER_PRODUCT, **self._options)

    @classmethod
    def restored(cls, dim: int, metric: Metric, state: dict[str, Any], lists: Any, device: Any) -> Self:
        """As it was saved: the whole rows from the file, the blocks' lists made anew from them."""
        made = cls(dim, metric, device=device, **state["options"])
        made._whole._restore(state["whole"], lists)
        if made._parts and len(made):
            ids = made.ids()
            rows = made.rows(ids)
            for part, at in zip(made._parts, made._places, strict=True):
                part.add(ids, np.ascontiguousarray(rows[:, at]))
            made._whole.settle()
        return made

    @property
    def cells(self) -> int:
        return self._whole.cells

    @property
    def default_m(self) -> int:
        return self._whole.default_m

    def __len__(self) -> int:
        return len(self._whole)

    def ids(self) -> Ids:
        return self._whole.ids()

    def rows(self, ids: Ids) -> Rows:
        return self._whole.rows(ids)

    def needs_rebuild(self) -> bool:
        return any(lists.needs_rebuild() for lists in (self._whole, *self._parts))

    def settle(self) -> None:
        for lists in (self._whole, *self._parts):
            lists.settle()

    def save(self, path: Path) -> str:
        options = {name: value for name, value in self._options.items() if name != "device"}
        state = {"options": options, "whole": self._whole._state()}
        header = {"kind": type(self).__name__, "dim": self.dim, "metric": self.metric.to_dict(), "state": state}
        return write(path, header, self._whole._lists)

    def _add(self, ids: Ids, rows: Rows) -> None:
        self._whole.add(ids, rows)
        for part, at in zip(self._parts, self._places, strict=True):
            part.add(ids, np.ascontiguousarray(rows[:, at]))

    def remove(self, ids: Ids) -> None:
        for lists in (self._whole, *self._parts):
            lists.remove(ids)

    def _search(self, queries: Rows, k: int, m: int, allowed: Ids | None) -> Found:
        if m < self.cells and (allowed is None or len(allowed) * self.cells > m * len(self)):
            return self._of_union(queries, k, m, allowed)
        held = self.ids()
        among = held if allowed is None else held[np.isin(held, allowed)]
        rows = self._rows(among)
        step = max(1, SCORED // max(1, len(among)))
        found = [self._scored(queries[at : at + step], among, rows, k) for at in range(0, len(queries), step)]
        fraction = np.full(len(queries), len(among) / max(1, len(self)))
        return _joined(found, k, fraction, self.cells)

    def _of_union(self, queries: Rows, k: int, m: int, allowed: Ids | None) -> Found:
        wanted = max(WIDER * k, LEAST)
        lists = [self._whole.search(queries, wanted, m=m, allowed=allowed)]
        for part, at in zip(self._parts, self._places, strict=True):
            lists.append(part.search(np.ascontiguousarray(queries[:, at]), wanted, m=m, allowed=allowed))
        found, scored = [], np.zeros(len(queries))
        for q in range(len(queries)):
            union = np.unique(np.concatenate([listed.ids[q] for listed in lists]))
            union = union[union >= 0]
            found.append(self._scored(queries[q : q + 1], union, self._rows(union), k))
            scored[q] = len(union)
        fraction = np.sum([listed.fraction for listed in lists], axis=0) + scored / max(1, len(self))
        return _joined(found, k, fraction, m)

    def _rows(self, ids: Ids) -> Rows:
        """Of ids that are surely held."""
        empty = np.empty((0, self.dim), np.float32)
        rows: Rows = self._whole._lists.reconstruct_batch(ids) if len(ids) else empty
        return rows

    def _scored(self, queries: Rows, ids: Ids, rows: Rows, k: int) -> tuple[Rows, Ids]:
        apart = self.metric.distances(queries, rows)
        return nearest(apart, np.broadcast_to(ids, apart.shape), k)


def _joined(found: list[tuple[Rows, Ids]], k: int, fraction: Rows, m: int) -> Found:
    empty = (np.empty((0, k), np.float32), np.empty((0, k), np.int64))
    distances, ids = (np.concatenate(parts) for parts in zip(empty, *found, strict=True))
    return Found(ids, distances, np.asarray(fraction, np.float64), m)
