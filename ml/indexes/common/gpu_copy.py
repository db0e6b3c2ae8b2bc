"""A copy of inverted lists on the first GPU."""

import ctypes
import logging
from functools import cache
from threading import Lock
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ml.errors import Unavailable
from ml.indexes.common.inverted_lists import Scan, scan_lists
from ml.types import Ids, Rows

MAX_GPU_SELECTION = 2048
"""FAISS's limit on a GPU, for the number of neighbours and of cells to probe."""
MAX_SKIPPED = 256
"""Rows that searches skip before the copy is made anew, which takes 0.15 s for a million faces."""
FIRST_NEW_LABEL = 1 << 62
WORKING_MEMORY = 256 << 20
"""Bytes on the GPU for intermediate results, for all indexes of a process; by itself FAISS takes 1.5 GiB."""
NEEDED_MEMORY = 1 << 30
"""Bytes that must be free on the GPU for FAISS to start there: its own, cuBLAS's and some for the lists."""

log = logging.getLogger("likeness.indexes")


def use_gpu(device: str) -> bool:
    """Whether "auto", "cpu" or "cuda" means a GPU on this machine. Raises Unavailable for "cuda" without a GPU."""
    available = device != "cpu" and hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0
    if device == "cuda" and not available:
        raise Unavailable("FAISS sees no GPU; install the extra `gpu` on a machine with CUDA, or use auto or cpu")
    return available


class Gpu:
    """FAISS's working memory on the first GPU, and the lock of the one thread at a time that it serves."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._resources: Any = None

    def copy(self, lists: Any) -> Any:
        """Return a copy of the lists. Raises RuntimeError if there is no memory for it."""
        if self._resources is None:
            free = read_free_memory()
            if free < NEEDED_MEMORY:  # FAISS would end the process
                raise RuntimeError(f"{free >> 20} MiB of the GPU are free, and FAISS needs {NEEDED_MEMORY >> 20}")
            self._resources = faiss.StandardGpuResources()
            self._resources.setTempMemory(WORKING_MEMORY)
        return faiss.index_cpu_to_gpu(self._resources, 0, lists)


def read_free_memory() -> int:
    """Return the bytes that are free on the first GPU, 0 if CUDA does not start."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    status = ctypes.CDLL(None).cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))  # of CUDA, which FAISS loaded
    return 0 if status else free.value


@cache
def first_gpu() -> Gpu:
    """Return what all indexes of this process share, so that they keep FAISS's working memory once."""
    return Gpu()


class GpuCopy:
    """A copy that follows the changes of the lists.

    FAISS cannot remove rows on a GPU. They stay under their labels, which searches skip, and a face that is added again
    gets a new label. After MAX_SKIPPED of them, the copy is dropped and the next search makes a new one. Lists for
    which the GPU has no memory are searched on the CPU until the index is built anew.
    """

    def __init__(self) -> None:
        self._gpu = first_gpu()
        self._fits = True
        self._copy: Any = None
        self._skipped: Ids = np.empty(0, np.int64)
        self._relabelled: list[int] = []  # ids by their new labels, from FIRST_NEW_LABEL up

    def make(self, lists: Any) -> None:
        """Copy the lists now unless there is a copy, so that no search waits for it."""
        with self._gpu.lock:
            if self._copy is None:
                self._make(lists)

    def drop(self) -> None:
        """Delete the copy; the next search makes a new one."""
        with self._gpu.lock:
            self._forget()

    def add(self, ids: Ids, rows: Rows) -> None:
        """Add (n, d) rows under (n,) ids, which the lists did not hold before, to the copy, if there is one."""
        with self._gpu.lock:
            if self._copy is None:
                return
            labels = ids.copy()
            for position in np.flatnonzero(np.isin(ids, self._skipped)).tolist():
                labels[position] = FIRST_NEW_LABEL + len(self._relabelled)
                self._relabelled.append(int(ids[position]))
            try:
                self._copy.add_with_ids(rows, labels)
            except RuntimeError as error:
                self._give_up(error)

    def skip(self, ids: Ids) -> None:
        """Skip these (n,) ids, all of which the lists held, in further searches."""
        with self._gpu.lock:
            if self._copy is None:
                return
            again = np.asarray(self._relabelled, np.int64)
            labels = FIRST_NEW_LABEL + np.flatnonzero(np.isin(again, ids))
            self._skipped = np.union1d(self._skipped, np.concatenate([ids, labels]))
        if len(self._skipped) > MAX_SKIPPED:
            self.drop()

    def search(self, lists: Any, queries: Rows, k: int, centroid_distances: Any, cells: Ids) -> Scan | None:
        """Search these (Q, m) cells for the k nearest of (Q, d) queries: FAISS's scores and ids, each (Q, k).

        Returns None if the GPU cannot: beyond FAISS's limits there, or without memory for the lists.
        """
        with self._gpu.lock:
            wanted = k + len(self._skipped)
            if max(wanted, cells.shape[1]) > MAX_GPU_SELECTION or (self._copy is None and not self._make(lists)):
                return None
            try:
                scores, labels = scan_lists(self._copy, queries, wanted, centroid_distances, cells)
            except RuntimeError as error:
                self._give_up(error)
                return None
            return self._resolve(scores, labels, k)

    def _make(self, lists: Any) -> bool:
        if self._fits:
            self._forget()
            try:
                self._copy = self._gpu.copy(lists)
            except RuntimeError as error:
                self._give_up(error)
        return self._fits

    def _resolve(self, scores: NDArray[np.float32], labels: Ids, k: int) -> Scan:
        """Take the first k of (Q, n) that are not skipped, under their ids."""
        if not len(self._skipped):
            return scores, labels
        kept = np.argsort(np.isin(labels, self._skipped), axis=1, kind="stable")[:, :k]
        scores, labels = np.take_along_axis(scores, kept, 1), np.take_along_axis(labels, kept, 1)
        new = labels >= FIRST_NEW_LABEL
        labels[new] = np.asarray(self._relabelled, np.int64)[labels[new] - FIRST_NEW_LABEL]
        return scores, labels

    def _give_up(self, error: RuntimeError) -> None:
        log.warning("index.left_on_cpu error=%s", error)
        self._fits = False
        self._forget()

    def _forget(self) -> None:
        self._copy, self._skipped, self._relabelled = None, np.empty(0, np.int64), []
