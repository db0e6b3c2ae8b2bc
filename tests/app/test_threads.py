"""A process takes no more cores than it was given."""

import os
import subprocess
import sys

import pytest

ASKED = "from app.config import Settings; from app.threads import get_threads; print(Settings().slots, get_threads())"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU sets")
def test_a_process_bound_to_one_core_counts_one_core() -> None:
    one = min(os.sched_getaffinity(0))
    environment = {k: v for k, v in os.environ.items() if "NUM_THREADS" not in k}
    command = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{one}]); {ASKED}"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["1", "1"]
