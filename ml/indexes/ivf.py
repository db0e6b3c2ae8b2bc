"""Multiple assignment (CLML, section 3.4): p cells by k-means, of which a search looks into the m nearest."""

from typing import Any, Literal, Self

import numpy as np

from ml.errors import WrongShape
from ml.indexes._cells import centroids, default_cells, imbalance
from ml.indexes._faiss import Lists, Scan, empty_lists
from ml.indexes._gpu import GpuCopy, wants_gpu
from ml.metric import EUCLIDEAN, Metric
from ml.types import Ids, Rows

GROWN = 2.0
UNBALANCED = 2.0


class Ivf(Lists):
    """An inverted file of whole rows: approximate for m < p, exhaustive for m = p.

    p: cells, None: `default_cells` of what it is trained on; never more than there are rows
    m: cells probed where a search does not say; None: a sixteenth of p, at least 32
    device: "auto" scans on the first GPU where FAISS has one, "cpu" never, "cuda" raises Unavailable without one.
        The lists stay on the CPU and the GPU holds a copy, for a GPU index takes no removal and no filter.
    """

    def __init__(
        self,
        dim: int,
        metric: Metric = EUCLIDEAN,
        *,
        p: int | None = None,
        m: int | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__(dim, metric)
        if p is not None and p < 1:
            raise WrongShape("p", "1 or more cells", p)
        self.p, self.m, self.seed = p, m, seed
        self.trained_on, self.trained_imbalance = 0, 1.0
        self._gpu = GpuCopy() if wants_gpu(device) else None

    @property
    def default_m(self) -> int:
        return self.m or max(32, self.cells // 16)

    def train(self, rows: Rows) -> Self:
        """Finds the cells by k-means; the same rows and seed give the same cells. What it held is dropped.

        An index that was not trained is trained on the first rows that it is given. Raises WrongShape, NotFinite.
        """
        self._check(rows)
        rows = np.ascontiguousarray(rows, np.float32)
        cells = min(self.p or default_cells(len(rows)), len(rows))
        self._lists, self._sizes = empty_lists(centroids(rows, cells, self.metric, self.seed), self.metric), None
        sample = rows[:: len(rows) // 100_000 + 1]
        held = np.bincount(self._lists.quantizer.search(sample, 1)[1][:, 0], minlength=cells)
        self.trained_on, self.trained_imbalance = len(rows), imbalance(held)
        return self

    def needs_rebuild(self) -> bool:
        """More than twice the faces it was trained on, or cells twice as uneven as they were then."""
        if self._lists is None or not len(self):
            return False
        grown = len(self) > GROWN * self.trained_on
        return grown or imbalance(self.sizes) > UNBALANCED * self.trained_imbalance

    def settle(self) -> None:
        self.trained_on = len(self)

    def remove(self, ids: Ids) -> None:
        before = len(self)
        super().remove(ids)
        if self._gpu is not None and len(self) != before:
            self._gpu.forget()

    def _add(self, ids: Ids, rows: Rows) -> None:
        if self._lists is None:
            self.train(rows)
        super()._add(ids, rows)
        if self._gpu is not None:
            self._gpu.add(ids, rows)

    def _scan(self, queries: Rows, wanted: int, near: Any, cells: Ids, sel: Any) -> Scan:
        m = cells.shape[1]
        if self._gpu is None or sel is not None or not self._gpu.can(wanted, m):
            return super()._scan(queries, wanted, near, cells, sel)
        distances, ids = self._gpu.search(self._lists, queries, wanted, m)
        return (distances if self.metric.kind == "l2" else -distances), ids

    def _state(self) -> dict[str, Any]:
        kept = ("p", "m", "seed", "trained_on", "trained_imbalance")
        return {name: getattr(self, name) for name in kept}
