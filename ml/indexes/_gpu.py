"""A copy of inverted lists on the first GPU."""

from threading import Lock
from typing import Any

import faiss

from ml.errors import Unavailable
from ml.types import Ids, Rows

MOST = 2048
"""FAISS's limit on a GPU, for the neighbours wanted and for the cells probed."""


def wants_gpu(device: str) -> bool:
    """Whether "auto", "cpu" or "cuda" means a GPU here. Raises Unavailable where "cuda" cannot be had."""
    there = device != "cpu" and hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0
    if device == "cuda" and not there:
        raise Unavailable("FAISS sees no GPU; install the extra `gpu` on a machine with CUDA, or use auto or cpu")
    return there


class GpuCopy:
    """Made at the first search after a removal, added to in step with the lists. FAISS's GPU resources serve one
    thread at a time, so searches queue here."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._resources = faiss.StandardGpuResources()
        self._copy: Any = None

    def can(self, wanted: int, m: int) -> bool:
        return wanted <= MOST and m <= MOST

    def forget(self) -> None:
        with self._lock:
            self._copy = None

    def add(self, ids: Ids, rows: Rows) -> None:
        with self._lock:
            if self._copy is not None:
                self._copy.add_with_ids(rows, ids)

    def search(self, lists: Any, queries: Rows, wanted: int, m: int) -> tuple[Any, Any]:
        """FAISS's own (scores, ids), each (Q, wanted)."""
        with self._lock:
            if self._copy is None:
                self._copy = faiss.index_cpu_to_gpu(self._resources, 0, lists)
            found: tuple[Any, Any] = self._copy.search(queries, wanted, params=faiss.SearchParametersIVF(nprobe=m))
            return found
