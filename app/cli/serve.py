"""Start the service: the API in this process, and worker processes that it restarts when they die."""

import gc
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from typing import Annotated

import typer
import uvicorn
from joblib import cpu_count

from app.access import keys
from app.cli.home import check_photos_have_rows, find_missing_database, require_database
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.schema import check_tables
from app.db.session import close_database, open_database, writing
from app.deps.server.configuration import configure_server
from app.main import create_app
from app.resources import Resources, open_resources
from app.startup import CannotStart, exit_with_reason
from app.storage.audit_log.chain import AuditChain
from app.storage.audit_log.drafts import EntryDraft
from app.storage.audit_log.spool import AuditSpool
from app.storage.home_watch import HomeWatch
from app.storage.private_files import create_home
from app.storage.recognisers.default_recogniser import store_built_in

MAX_STOP_SECONDS = 8


def migrate(
    new: Annotated[bool, typer.Option("--new", help="create the database if there is none yet")] = False,
) -> None:
    """Migrate the database to the newest schema. Refuses if the service's home has no database."""
    with exit_with_reason():
        settings = Settings.from_env(os.environ)
    require_database(settings, new)
    with exit_with_reason(settings):
        if not new:
            check_photos_have_rows(settings)
        _migrate(settings)


def _migrate(settings: Settings) -> None:
    create_home(settings.home)
    upgrade_database(settings.database)
    database = open_database(settings.database)
    try:
        check_tables(database)
    finally:
        close_database(database)


def worker(
    queue: Annotated[
        str, typer.Option(help="default (imports, publishing) or training (fits, evaluations)")
    ] = "default",
    threads: Annotated[int, typer.Option(help="library threads of this process")] = 1,
) -> None:
    """Run one worker in the foreground. Refuses if the service's home has no database."""
    with exit_with_reason():
        settings = Settings.from_env(os.environ)
    require_database(settings)
    with exit_with_reason(settings):
        create_home(settings.home)
    os.execv(sys.executable, [sys.executable, "-m", "workers", "--queue", queue, "--threads", str(threads)])


def serve(
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on")] = 8000,
    workers: Annotated[bool, typer.Option(help="start the workers too, and restart those that die")] = True,
) -> None:
    """Migrate the database, then run the API and its workers until they are stopped (TERM, Ctrl-C)."""
    with exit_with_reason():
        settings = Settings.from_env(os.environ)
    with exit_with_reason(settings), ExitStack() as stack:
        new_database = find_missing_database(settings)
        check_photos_have_rows(settings)
        listener = stack.enter_context(_listen(host, port))
        _migrate(settings)
        secret = create_first_key(settings)
        with open_resources(settings) as resources:
            _check_start(resources)
        stack.pop_all()  # keeps the listener open
    if new_database:
        print(f"made a new database: {new_database.resolve()}")
    if secret:
        print(f"admin key (shown once): {secret}")
    print(f"Likeness listens on http://{host}:{port}  (TERM or Ctrl-C stops it)", flush=True)
    processes = ServiceProcesses(settings)

    def finish_start() -> None:
        gc.freeze()  # modules stay: a collection that looked through them would stop all requests for 0.1 s
        if workers:
            processes.start()

    server = uvicorn.Server(configure_server(create_app(settings, finish_start), settings, host=host, port=port))
    try:
        server.run(sockets=[listener])
    finally:
        processes.stop()


def _check_start(resources: Resources) -> None:
    """Do what the application does when it starts: what cannot be opened or stored ends the process here.

    Raises OSError, Busy, SQLAlchemyError, LikenessError.
    """
    store_built_in(resources.database, resources.models, resources.default_recogniser)
    AuditSpool(resources.audit).close()


def _listen(host: str, port: int) -> socket.socket:
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


def create_first_key(settings: Settings) -> str | None:
    """Create an admin's key for all collections, and return its secret; None if there is one that never expires."""
    database = open_database(settings.database)
    try:
        with writing(database) as session:
            if keys.list_lasting_admins(session):
                return None
            key, secret = keys.create_key(session, "admin", "first start")
            entry = EntryDraft.make("key.create", resource=f"key:{key.id}")
            AuditChain(settings.home).append(session, [entry])
            return secret
    finally:
        close_database(database)


class ServiceProcesses:
    """The worker processes of one server, which start after it, since they need the same cores to start.

    A process that dies is started again, unless the home is gone.
    """

    def __init__(self, settings: Settings) -> None:
        python = [sys.executable, "-m", "workers", "--parent", str(os.getpid())]
        default = ["--queue", "default"]
        training = ["--queue", "training", "--threads", str(cpu_count())]
        self._commands = [python + options for options in [default] * (settings.workers or cpu_count()) + [training]]
        self._home = HomeWatch([settings.home])
        self._running: list[subprocess.Popen[bytes]] = []
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="worker-watcher", daemon=True)

    def start(self) -> None:
        """Start the processes, without waiting for them."""
        self._watcher.start()

    def _watch(self) -> None:
        self._running += [subprocess.Popen(command) for command in self._commands]
        while not self._stopping.wait(0.5):
            self._restart_dead()

    def _restart_dead(self) -> None:
        for i, process in enumerate(self._running):
            if process.poll() is not None and self._home.find_fault() is None:
                self._running[i] = subprocess.Popen(self._commands[i])

    def stop(self) -> None:
        """Stop the processes; those that do not end within MAX_STOP_SECONDS are killed."""
        self._stopping.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(MAX_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
