"""How many threads the libraries of this process take.

torch is told when it is there: it takes two seconds to load, and a process loads it with the first model that needs it.
Small calls on two OpenMP threads of a busy machine take ten times as long as on one. Cores are counted by joblib, which
heeds the CPU set and the container's quota.
"""

import os
import sys

import cv2
import faiss
from joblib import cpu_count
from threadpoolctl import threadpool_limits

NAMES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read by libraries that are loaded later."""


def set_threads(threads: int) -> None:
    """At most so many each, of the calling thread and of those that start later."""
    os.environ.update(dict.fromkeys(NAMES, str(threads)))
    threadpool_limits(threads, user_api="blas")
    cv2.setNumThreads(threads)
    faiss.omp_set_num_threads(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)


def get_threads() -> int:
    return int(os.environ.get(NAMES[0]) or cpu_count())
