"""Limit the threads of the numerical libraries in this process.

torch is limited only if it is loaded: that takes two seconds, and a process loads it with the first model that needs
it. On a busy machine, small calls on two OpenMP threads take ten times as long as on one. Cores are counted by joblib,
which respects the CPU set and the container's quota.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import cv2
import faiss
from joblib import cpu_count
from threadpoolctl import threadpool_limits

ENVIRONMENT_NAMES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables that libraries read when they are loaded."""

SWITCH_SECONDS = 0.001
"""Python's own 0.005 cost a process that answers searches on two threads a sixth of them; 0.0003 gained no more."""


def set_threads(threads: int) -> None:
    """Limit the threads of each library, those of FAISS for the calling thread alone.

    Other threads have as many of FAISS as the environment said when it was loaded: see `app.cli.server.settings`.
    """
    os.environ.update(dict.fromkeys(ENVIRONMENT_NAMES, str(threads)))
    threadpool_limits(threads, user_api="blas")
    cv2.setNumThreads(threads)
    faiss.omp_set_num_threads(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)


def set_switch_interval() -> None:
    """Have threads of this process pass the interpreter on after SWITCH_SECONDS, so that the event loop waits less."""
    sys.setswitchinterval(SWITCH_SECONDS)


@contextmanager
def all_cores(processes: int) -> Iterator[None]:
    """Let the calling thread compute on all cores by FAISS, which so many processes share."""
    faiss.omp_set_num_threads(max(1, cpu_count() // processes))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(get_threads())


def get_threads() -> int:
    """Return the limit that was set, or else the number of cores."""
    return int(os.environ.get(ENVIRONMENT_NAMES[0]) or cpu_count())
