"""Read the settings of a service before the libraries that depend on them are loaded."""

import os

from joblib import cpu_count

from app.config import Settings
from app.startup import exit_with_reason

OPENMP_THREADS = "OMP_NUM_THREADS"


def read_settings() -> Settings:
    """Read the settings, and set the OpenMP threads of FAISS for the threads in which the API answers requests.

    Those have what the variable said when FAISS was loaded. What a process sets later holds for its main thread alone.
    """
    with exit_with_reason():
        settings = Settings.from_env(os.environ)
    os.environ[OPENMP_THREADS] = str(max(1, cpu_count() // settings.slots))
    return settings
