"""Read the settings of a service, and set what libraries read from the environment when they are loaded."""

import os
import tempfile

from app.config import API_PROCESSES_VARIABLE, METRICS_VARIABLE, Settings
from app.startup import exit_with_reason

OPENMP_THREADS = "OMP_NUM_THREADS"


def read_settings(api_processes: int | None) -> Settings:
    """Read the settings, and set the OpenMP threads of FAISS for the threads in which the API answers requests.

    Those have what the variable said when FAISS was loaded. What a process sets later holds for its main thread alone.
    api_processes: instead of the one of the environment
    """
    if api_processes is not None:
        os.environ[API_PROCESSES_VARIABLE] = str(api_processes)  # workers read it too
    with exit_with_reason():
        settings = Settings.from_env(os.environ)
    os.environ[OPENMP_THREADS] = str(settings.threads_per_slot)
    return settings


def share_metrics(settings: Settings) -> None:
    """Have several processes of the API count together, also with those before a reload."""
    if settings.api_processes > 1 and METRICS_VARIABLE not in os.environ:
        os.environ[METRICS_VARIABLE] = tempfile.mkdtemp(prefix="likeness-metrics-")


def leave_shared_metrics() -> None:
    """Have this process, which is none of the API, count for itself. Call it before it counts anything."""
    if METRICS_VARIABLE in os.environ:
        os.environ[METRICS_VARIABLE] = tempfile.mkdtemp(dir=os.environ[METRICS_VARIABLE])
