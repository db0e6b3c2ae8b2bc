"""One trial, and what is checked after each of them and at the end."""

import logging
import time
from collections.abc import Callable

from tests.chaos.workload import COLLECTION, Work, Workload
from tests.service_subprocess import check_consistency

DELAYS_SECONDS = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)
END_SECONDS = 120.0
log = logging.getLogger("chaos")


def run_trial(workload: Workload, trial: int, kind: str, start: Callable[[Workload], Work]) -> None:
    """Start work, kill something a moment later, and check everything."""
    started = time.monotonic()
    work = start(workload)
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
    result = workload.run_command("audit", "verify")
    assert result.exit_code == 0, (result.output, result.exc_info)


def wait_for_jobs_and_entries(workload: Workload) -> None:
    """Wait until no job is unfinished, and each accepted request is in the audit log, of which the chain holds."""
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
