"""Run the API and its workers, forked from this process."""

import gc
import socket
from collections.abc import Callable
from contextlib import ExitStack

from joblib import cpu_count

from app.cli.server.api_process import ApiProcess
from app.cli.server.in_child import PreparingProcess
from app.cli.server.preparation import Preparation, check_replaceable
from app.config import Settings
from app.imports import import_uncollected
from app.startup import CannotStart, exit_with_reason
from app.storage.home_watch import HomeWatch
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
        listeners, predecessors = handover or ([listen(host, port)], Predecessors())
        for listener in listeners:
            stack.enter_context(listener)
        preparing = PreparingProcess(settings)
        api = ApiProcess(settings, listeners[0], waits_for_indexes=handover is not None)
        worker_roles = list_worker_roles(settings) if workers else []
        preparation = preparing.finish()
        stack.pop_all()  # keeps the listeners open
    if handover is None:
        announce(preparation, f"http://{host}:{port}")
    gc.collect()
    gc.freeze()  # a collection would write to every object, and so copy the memory that the processes share
    supervisor = Supervisor(
        [Role("api", api.run)],
        worker_roles,
        may_start=may_start_again(settings),
        reload=Reloader(listeners).reload,
        predecessors=predecessors,
    )
    code = supervisor.run()
    if code:
        raise SystemExit(code)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to this address. Raises CannotStart."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise CannotStart(
            f"it cannot listen on {host}, port {port}: {error.strerror}. Stop the process that uses the port, or "
            "choose another with --port"
        ) from error
    return listener


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
    """The workers for short jobs, and the one for trainings."""
    run_worker = import_uncollected(WORKERS_MODULE).run_worker

    def run_default(report_ready: ReportReady) -> None:
        run_worker("default", 1, report_ready)

    def run_training(report_ready: ReportReady) -> None:
        run_worker("training", cpu_count(), report_ready)

    default = [Role("worker default", run_default)] * (settings.workers or cpu_count())
    return [*default, Role("worker training", run_training)]
