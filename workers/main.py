"""A worker process: it runs the jobs of its queue until it is told to stop."""

import argparse
import logging
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack

from setproctitle import setproctitle
from sqlalchemy.exc import OperationalError

from app.config import Settings
from app.db.schema import NotMigrated
from app.resources import open_resources
from app.startup import exit_with_reason
from app.threads import set_threads
from workers.watchdog import Watchdog, limit_memory
from workers.worker import Worker

log = logging.getLogger("likeness.worker")
TRAINING_NICENESS = 15
KEPT_CONNECTIONS = 1
"""To the database. A second one, as to renew a lease, is seldom needed, and would keep its caches for hours."""


def _check_at_start(worker: Worker) -> None:
    """Check the database, or leave it to `run` if it cannot be reached or is to be migrated first.

    Raises CannotStart, DatabaseError.
    """
    try:
        worker.check_database()
    except (OperationalError, NotMigrated) as error:
        log.warning("database.away error=%s", error)


def run_worker(queue: str, threads: int, report_ready: Callable[[], None] | None = None) -> None:
    """Run the jobs of a queue in this process until it receives SIGTERM or SIGINT.

    threads: of the numerical libraries
    report_ready: is called when the worker can take jobs; None if the worker was not started by a running service
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    if queue == "training":
        os.nice(TRAINING_NICENESS)
    set_threads(threads)
    with ExitStack() as stack:
        with exit_with_reason():
            settings = Settings.from_env(os.environ)
        with exit_with_reason(settings):
            is_running = report_ready is not None
            resources = stack.enter_context(open_resources(settings, is_running, KEPT_CONNECTIONS))
            worker = Worker(resources, queue)
            _check_at_start(worker)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, worker.stop)
        if report_ready is not None:
            report_ready()
        Watchdog(worker, limit_memory()).start()
        with exit_with_reason(settings):
            worker.run()


def main() -> None:
    """`python -m workers --queue default` (imports, publishing) or `--queue training` (fits, evaluations)."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--queue", choices=("default", "training"), default="default")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    setproctitle(f"likeness: worker {arguments.queue}")
    run_worker(arguments.queue, arguments.threads)
