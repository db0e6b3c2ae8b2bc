"""Run the API and its workers, forked from this process."""

import gc
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from joblib import cpu_count

from app.cli.server.api_process import ApiProcess
from app.cli.server.listeners import open_listeners
from app.cli.server.preparation import Preparation, check_replaceable
from app.cli.server.preparing_process import PreparingProcess
from app.cli.server.settings import leave_shared_metrics
from app.config import METRICS_VARIABLE, Settings
from app.imports import import_uncollected
from app.startup import exit_with_reason
from app.storage.home.watch import HomeWatch
from app.supervision.children import ReportReady, Role
from app.supervision.reloading import Reloader, take_handover
from app.supervision.supervisor import Predecessors, Supervisor

WORKERS_MODULE = "workers.main"
"""Imported by its name: `workers` stands above `app`."""


def check_reload(settings: Settings) -> None:
    """Check that this version can take over from a running service. Raises SystemExit with the reason."""
    import_uncollected(WORKERS_MODULE)
    with exit_with_reason(settings):
        check_replaceable(settings)


def run_service(settings: Settings, host: str, port: int, workers: bool) -> None:
    """Run until SIGTERM or SIGINT. Raises SystemExit if the service cannot start, or has to be given up."""
    handover = take_handover()
    with exit_with_reason(settings), ExitStack() as stack:
        listeners, predecessors = handover or (open_listeners(host, port, settings.api_processes), Predecessors())
        for listener in listeners:
            stack.enter_context(listener)
        preparing = PreparingProcess(settings)
        api = ApiProcess(settings, waits_for_indexes=handover is not None)
        preparation = preparing.finish()
        stack.pop_all()  # keeps the listeners open
    if handover is None:
        announce(preparation, f"http://{host}:{port}")
    gc.freeze()  # a collection would write to every object, and so copy the memory that the processes share
    supervisor = Supervisor(
        [Role("api", partial(api.run, listener)) for listener in listeners],
        partial(list_worker_roles, settings) if workers else list,
        may_start=may_start_again(settings),
        reload=Reloader(listeners).reload,
        predecessors=predecessors,
    )
    code = supervisor.run()
    if METRICS_VARIABLE in os.environ:
        shutil.rmtree(os.environ[METRICS_VARIABLE], ignore_errors=True)
    if code:
        raise SystemExit(code)


def announce(preparation: Preparation, address: str) -> None:
    """Print what an operator must know of the start."""
    if preparation.new_database:
        print(f"made a new database: {preparation.new_database}")
    if preparation.secret:
        print(f"admin key (shown once): {preparation.secret}")
    print(f"Likeness listens on {address}  (TERM or Ctrl-C stops it)", flush=True)


def may_start_again(settings: Settings) -> Callable[[], bool]:
    """Return the function that says whether the home is still there: no process makes a new one."""
    home = HomeWatch([settings.home])
    return lambda: home.find_fault() is None


def list_worker_roles(settings: Settings) -> list[Role]:
    """The workers for short jobs, and the one for trainings. Their modules are imported now."""
    run_worker = import_uncollected(WORKERS_MODULE).run_worker
    gc.freeze()

    def run_default(report_ready: ReportReady) -> None:
        leave_shared_metrics()
        run_worker("default", 1, report_ready)

    def run_training(report_ready: ReportReady) -> None:
        leave_shared_metrics()
        run_worker("training", cpu_count(), report_ready)

    default = [Role("worker default", run_default)] * (settings.workers or cpu_count())
    return [*default, Role("worker training", run_training)]
