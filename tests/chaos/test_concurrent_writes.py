"""Kill every process of the service at random moments beside clients that write all at once, on both databases."""

import os
import random
from pathlib import Path

import pytest

from tests.chaos.concurrent_work import ConcurrentWriters
from tests.chaos.gallery_work import start_ingest
from tests.chaos.model_work import start_training
from tests.chaos.trials import run_trial
from tests.chaos.workload import Workload
from tests.service_subprocess import ServiceSubprocess

TRIALS = max(1, int(os.environ.get("CHAOS_TRIALS", "30")) // 10 - 2)
"""On each database: one in the tests, without trainings, and many with `make chaos`."""
SEED = int(os.environ.get("CHAOS_SEED", "1"))
FIRST_PEOPLE = 24 if TRIALS > 1 else 4
"""Fewer than a training needs, where there is none."""

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120 + 60 * TRIALS)]


def test_each_answered_write_is_there_once_and_each_other_wholly_or_not_when_the_whole_service_is_killed(
    service_of_each_database: ServiceSubprocess, tmp_path: Path
) -> None:
    workload = Workload(service_of_each_database, random.Random(SEED), tmp_path)
    workload.finish(start_ingest(workload, FIRST_PEOPLE))
    if TRIALS > 1:
        workload.finish(start_training(workload, "wpca"))  # so that clients train, publish and roll back
    writers = ConcurrentWriters(workload)
    for trial in range(TRIALS):
        run_trial(workload, trial, "concurrent writes", writers.start)
    writers.close()
    for [erasure] in workload.service.query("select id from erasures order by id desc limit 3"):
        result = workload.run_command("erase", "verify", erasure)
        assert result.exit_code == 0, (result.output, result.exc_info)
