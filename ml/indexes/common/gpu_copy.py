"""A copy of inverted lists on the first GPU."""

from threading import Lock
from typing import Any

import faiss

from ml.errors import Unavailable
from ml.types import Ids, Rows

MAX_GPU_SELECTION = 2048
"""FAISS's limit on a GPU, for the number of neighbours and of cells to probe."""


def use_gpu(device: str) -> bool:
    """Whether "auto", "cpu" or "cuda" means a GPU on this machine. Raises Unavailable for "cuda" without a GPU."""
    available = device != "cpu" and hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0
    if device == "cuda" and not available:
        raise Unavailable("FAISS sees no GPU; install the extra `gpu` on a machine with CUDA, or use auto or cpu")
    return available


class GpuCopy:
    """A copy that is made at the first search, dropped by a removal, and added to together with the lists.

    FAISS's GPU resources serve one thread at a time, so searches wait for one another here.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._resources = faiss.StandardGpuResources()
        self._copy: Any = None

    def can_search(self, k: int, m: int) -> bool:
        """Whether k neighbours in m cells are within the limits of FAISS on a GPU."""
        return k <= MAX_GPU_SELECTION and m <= MAX_GPU_SELECTION

    def drop(self) -> None:
        """Delete the copy; the next search makes a new one."""
        with self._lock:
            self._copy = None

    def add(self, ids: Ids, rows: Rows) -> None:
        """Add (n, d) rows under (n,) ids to the copy, if there is one."""
        with self._lock:
            if self._copy is not None:
                self._copy.add_with_ids(rows, ids)

    def search(self, lists: Any, queries: Rows, k: int, m: int) -> tuple[Any, Any]:
        """Search m cells for the k nearest of (Q, d) queries: FAISS's scores and ids, each (Q, k)."""
        with self._lock:
            if self._copy is None:
                self._copy = faiss.index_cpu_to_gpu(self._resources, 0, lists)
            nearest: tuple[Any, Any] = self._copy.search(queries, k, params=faiss.SearchParametersIVF(nprobe=m))
            return nearest
