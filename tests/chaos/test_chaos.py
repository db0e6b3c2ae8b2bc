"""Kill processes at random moments of every kind of work; afterwards nothing is lost, repeated, stuck or left."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.command_work import start_restore, start_rotation, start_snapshot
from tests.chaos.gallery_work import (
    check_labels,
    start_erasing_face,
    start_erasing_subject,
    start_ingest,
    start_labelling,
    start_parsing,
)
from tests.chaos.model_work import (
    start_atlas,
    start_discovery,
    start_evaluation,
    start_publication,
    start_training,
)
from tests.chaos.test_switching import SWITCHING_TRIALS
from tests.chaos.trials import run_trial, wait_for_jobs_and_entries
from tests.chaos.workload import Work, Workload
from tests.service_subprocess import ServiceSubprocess

TRIALS = int(os.environ.get("CHAOS_TRIALS", "30")) - SWITCHING_TRIALS
"""CHAOS_TRIALS are all trials of this folder."""
SERVICES = int(os.environ.get("CHAOS_SERVICES", "2"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
KINDS: dict[str, Callable[[Workload], Work]] = {
    "ingest": start_ingest,
    "parse": start_parsing,
    "erase-face": start_erasing_face,
    "erase-subject": start_erasing_subject,
    "label": start_labelling,
    "train": start_training,
    "publish": start_publication,
    "evaluate": start_evaluation,
    "atlas": start_atlas,
    "discover": start_discovery,
    "snapshot": start_snapshot,
    "restore": start_restore,
    "rotate": start_rotation,
}
CHOSEN_KINDS = os.environ.get("CHAOS_KINDS", "").split() or list(KINDS)
FIRST_PEOPLE = 24

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120 + 60 * TRIALS)]


def deal_kinds(trials: int, rng: random.Random) -> Iterator[str]:
    """Yield a kind for each trial: every kind once before any comes again, each time in another order."""
    kinds: list[str] = []
    for _ in range(trials):
        kinds = kinds or rng.sample(CHOSEN_KINDS, len(CHOSEN_KINDS))
        yield kinds.pop()


@pytest.mark.parametrize("number", range(SERVICES))
def test_accepted_work_is_neither_lost_nor_repeated_when_processes_are_killed(
    service: ServiceSubprocess, number: int, tmp_path: Path
) -> None:
    """The trials are divided among several services. number: which of them this one is."""
    workload = Workload(service, random.Random(SEED + number), tmp_path)
    workload.finish(start_ingest(workload, FIRST_PEOPLE))
    workload.finish(start_training(workload, "wpca"))
    for trial, kind in enumerate(deal_kinds(TRIALS, random.Random(SEED))):
        if trial % SERVICES == number:
            run_trial(workload, trial, kind, KINDS[kind])
    check_end(workload)


def check_end(workload: Workload) -> None:
    """Check what no later work may change: labels, erasures, jobs, and that each accepted request is in the log."""
    check_labels(workload)
    assert workload.count("select count(*) from erasures where state = 'final'") == workload.erased
    wait_for_jobs_and_entries(workload)
