"""Scans of inverted lists that several threads of this process share.

FAISS's own threads (OpenMP) wait for more work at the full cost of a core, and a scan that waits for one of them on a
busy machine takes ten times as long. These sleep, and a part that none of them has begun is scanned by the caller.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from typing import TypeVar

import faiss
import numpy as np
from joblib import cpu_count
from numpy.typing import NDArray

from ml.types import Ids, Rows

Result = TypeVar("Result")
ScanPart = tuple[Rows, NDArray[np.float32], Ids]
"""(q, d) queries, and the (q, m) distances and numbers of the cells to scan for them."""

PARTS_PER_THREAD = 2
"""Into which a scan is split, so that a thread which another program holds up leaves one to others."""
MIN_SHARED_QUERIES = 4
MIN_SHARED_NUMBERS = 1 << 22
"""Scans of fewer queries, or of fewer numbers of float32, gain nothing: to wake a thread and to pass the interpreter on
takes 0.1 ms, and such a scan 0.5 to 1."""


class ScanHelpers:
    """Threads that take parts of long scans. count: how many may help with one; none at first"""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(cpu_count(), "scan", faiss.omp_set_num_threads, (1,))  # started when needed
        self.count = 0

    def run(self, parts: Sequence[Callable[[], Result]]) -> list[Result]:
        """Return the results of these parts, of which the caller does the first and those that no thread has begun."""
        first, *others = parts
        futures = [self._threads.submit(part) for part in others]
        try:
            results: list[Result | Future[Result]] = [first()]
            for part, future in zip(others, futures, strict=True):
                results.append(part() if future.cancel() else future)
        finally:
            wait([future for future in futures if not future.cancel()])  # then nothing reads the lists any more
        return [result.result() if isinstance(result, Future) else result for result in results]


@cache
def scan_helpers() -> ScanHelpers:
    """Return what all indexes of this process share."""
    return ScanHelpers()


def split_scan(part: ScanPart, threads: int) -> list[ScanPart]:
    """Split a scan of (Q, d) queries and (Q, m) cells by its queries for so many threads."""
    queries, distances, cells = part
    count = min(len(queries), PARTS_PER_THREAD * threads)
    bounds = [len(queries) * number // count for number in range(count + 1)]
    return [(queries[start:end], distances[start:end], cells[start:end]) for start, end in pairwise(bounds)]
