"""The commands that run the service. What serving needs is imported when `serve` runs."""

import os
import sys
from typing import Annotated

import typer

from app.imports import import_uncollected


def migrate(
    new: Annotated[bool, typer.Option("--new", help="create the database if there is none yet")] = False,
) -> None:
    """Migrate the database to the newest schema. Refuses if the service's home has no database."""
    import_uncollected("app.cli.server.preparation").migrate_home(new)


def worker(
    queue: Annotated[
        str, typer.Option(help="default (imports, publishing) or training (fits, evaluations)")
    ] = "default",
    threads: Annotated[int, typer.Option(help="library threads of this process")] = 1,
) -> None:
    """Run one worker in the foreground. Refuses if the service's home has no database."""
    import_uncollected("app.cli.server.preparation").require_home()
    os.execv(sys.executable, [sys.executable, "-m", "workers", "--queue", queue, "--threads", str(threads)])


def serve(
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on")] = 8000,
    workers: Annotated[bool, typer.Option(help="start the workers too")] = True,
    api_processes: Annotated[
        int | None, typer.Option(help="processes of the API, which share the port; by default LIKENESS_API_PROCESSES")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="only check that HUP could replace a running service by this version")
    ] = False,
) -> None:
    """Migrate the database, then run the API and its workers until they are stopped (TERM, Ctrl-C).

    Processes that die are started again. HUP starts all processes anew, with the code that is installed by then; the
    old ones of the API finish their requests first.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy reads it: the process that forks has one thread
    environment = import_uncollected("app.cli.server.settings")
    settings = environment.read_settings(api_processes)
    if check:
        import_uncollected("app.cli.server.service").check_reload(settings)
        return
    environment.share_metrics(settings)
    import_uncollected("app.cli.server.service").run_service(settings, host, port, workers)
