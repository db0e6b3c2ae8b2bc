"""Kill processes at random moments of every kind of work; afterwards nothing is lost, repeated, stuck or left."""

import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.config import Settings
from app.db.session import close_database, open_database
from app.storage.audit_log.chain import AuditChain
from app.storage.audit_log.verification import verify_chain
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
from tests.chaos.workload import COLLECTION, Work, Workload
from tests.service_subprocess import ServiceSubprocess, check_consistency

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
DELAYS_SECONDS = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)
END_SECONDS = 120.0
log = logging.getLogger("chaos")

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
            run_trial(workload, trial, kind)
    check_end(workload)


def run_trial(workload: Workload, trial: int, kind: str) -> None:
    """Start work, kill something a moment later, and check everything."""
    started = time.monotonic()
    work = KINDS[kind](workload)
    victim = workload.rng.choice(work.victims)
    if victim != "parser":
        time.sleep(workload.rng.choice(DELAYS_SECONDS) * workload.rng.random())
    is_killed = workload.kill(work, victim)
    log.info("trial %d: %s, %s %s", trial, kind, victim, "killed" if is_killed else "had ended")
    workload.finish(work)
    check_consistency(workload.service, COLLECTION)
    check_audit_log(workload)
    log.info("trial %d: %.1f s", trial, time.monotonic() - started)


def check_audit_log(workload: Workload) -> None:
    """Check that the chain of the audit log holds."""
    settings = Settings.from_env(workload.service.env)
    database = open_database(settings.database)
    try:
        assert verify_chain(database, AuditChain(settings.home)).faults == []
    finally:
        close_database(database)


def check_end(workload: Workload) -> None:
    """Check what no later work may change: labels, erasures, jobs, and that each accepted request is in the log."""
    check_labels(workload)
    assert workload.count("select count(*) from erasures where state = 'final'") == workload.erased
    unfinished = "select kind, state from jobs where state in ('queued', 'running') and kind != 'sweep'"
    until = time.monotonic() + END_SECONDS
    while workload.service.query(unfinished) or list_missing_entries(workload):
        assert time.monotonic() < until, (workload.service.query(unfinished), list_missing_entries(workload))
        time.sleep(0.2)
    check_audit_log(workload)


def list_missing_entries(workload: Workload) -> list[str]:
    """List the actions of which the audit log has fewer entries than were accepted, or more than were sent."""
    entries = dict(workload.service.query("select action, count(*) from audit_entries where status < 300 group by 1"))
    actions = sorted(workload.sent)
    return [a for a in actions if not workload.accepted[a] <= entries.get(a, 0) <= workload.sent[a]]
