"""Start the service: the API in this process, and worker processes that it restarts when they die."""

import os
import subprocess
import sys
import threading
from typing import Annotated

import typer
import uvicorn
from joblib import cpu_count
from sqlalchemy import exists, select

from app.access import keys
from app.cli.home import find_missing_database, require_database
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import open_database, writing
from app.db.tables import Key
from app.main import create_app

MAX_STOP_SECONDS = 8


def migrate(
    new: Annotated[bool, typer.Option("--new", help="create the database if there is none yet")] = False,
) -> None:
    """Migrate the database to the newest schema. Refuses if the service's home has no database."""
    settings = Settings.from_env(os.environ)
    require_database(settings, new)
    _migrate(settings)


def _migrate(settings: Settings) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    upgrade_database(settings.database)


def worker(
    queue: Annotated[
        str, typer.Option(help="default (imports, publishing) or training (fits, evaluations)")
    ] = "default",
    threads: Annotated[int, typer.Option(help="library threads of this process")] = 1,
) -> None:
    """Run one worker in the foreground. Refuses if the service's home has no database."""
    require_database(Settings.from_env(os.environ))
    os.execv(sys.executable, [sys.executable, "-m", "workers.main", "--queue", queue, "--threads", str(threads)])


def serve(
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on")] = 8000,
    workers: Annotated[bool, typer.Option(help="start the workers too, and restart those that die")] = True,
) -> None:
    """Migrate the database, then run the API and its workers until they are stopped (TERM, Ctrl-C)."""
    settings = Settings.from_env(os.environ)
    new_database = find_missing_database(settings)
    _migrate(settings)
    secret = _create_first_key(settings)
    if new_database:
        print(f"made a new database: {new_database.resolve()}")
    if secret:
        print(f"admin key (shown once): {secret}")
    print(f"Likeness listens on http://{host}:{port}  (TERM or Ctrl-C stops it)", flush=True)
    processes = ServiceProcesses(settings) if workers else None
    try:
        config = uvicorn.Config(
            create_app(settings), host=host, port=port, log_level="warning", timeout_graceful_shutdown=3
        )
        uvicorn.Server(config).run()
    finally:
        if processes is not None:
            processes.stop()


def _create_first_key(settings: Settings) -> str | None:
    """Create an administrator's key and return its secret; None if there is one already."""
    with writing(open_database(settings.database)) as session:
        if session.scalar(select(exists().where(Key.role == "admin"))):
            return None
        return keys.create_key(session, "admin", "first start")[1]


class ServiceProcesses:
    """The worker processes of one server. A process that dies is started again."""

    def __init__(self, settings: Settings) -> None:
        python = [sys.executable, "-m", "workers.main", "--parent", str(os.getpid())]
        default = ["--queue", "default"]
        training = ["--queue", "training", "--threads", str(cpu_count())]
        self._commands = [python + options for options in [default] * (settings.workers or cpu_count()) + [training]]
        self._running = [subprocess.Popen(c) for c in self._commands]
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="worker-watcher", daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._stopping.wait(0.5):
            for i, process in enumerate(self._running):
                if process.poll() is not None:
                    self._running[i] = subprocess.Popen(self._commands[i])

    def stop(self) -> None:
        """Stop the processes; those that do not end within MAX_STOP_SECONDS are killed."""
        self._stopping.set()
        self._watcher.join()
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(MAX_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
