"""What a process of the API does."""

import logging
import signal
import socket
import sys
import threading
import time

from sqlalchemy.exc import SQLAlchemyError

from app.config import Settings
from app.db.schema import check_own_schema
from app.db.session import close_database, open_database, reading
from app.deps.server.configuration import configure_server
from app.deps.server.draining import DrainingServer
from app.errors import AppError
from app.health.service import list_unready_reasons
from app.imports import collect_rarely
from app.main import create_app
from app.serving.engine import Engine
from app.startup import CannotStart
from app.supervision.children import CANNOT_GO_ON, DRAIN_SIGNAL, ReportReady

log = logging.getLogger("likeness.api")

MAX_INDEX_SECONDS = 60.0
"""How long a process that replaces another one may load its indexes before the other one ends anyway."""
POLL_SECONDS = 0.1


class ApiProcess:
    """The application, which is built before the process is forked, and the work of the process.

    waits_for_indexes: whether it is ready only when its indexes are loaded, since it replaces a process that has them
    """

    def __init__(self, settings: Settings, waits_for_indexes: bool) -> None:
        self.settings, self.waits_for_indexes = settings, waits_for_indexes
        self._report_ready: ReportReady = lambda: None
        self._fault: CannotStart | None = None  # what keeps the process from going on
        self._app = create_app(settings, self._note_started)

    def run(self, listener: socket.socket, report_ready: ReportReady) -> None:
        """Serve on a socket until SIGTERM or SIGINT, or until DRAIN_SIGNAL and the end of all connections.

        Raises SystemExit if the application cannot start, or cannot go on.
        """
        self._report_ready = report_ready
        self._server = server = DrainingServer(configure_server(self._app, self.settings))
        signal.signal(DRAIN_SIGNAL, server.drain)
        self._fault = find_schema_fault(self.settings)
        if self._fault is None:
            server.run(sockets=[listener])
        if self._fault is not None:
            sys.stderr.write(f"likeness cannot go on: {self._fault}\n")
            raise SystemExit(CANNOT_GO_ON)

    def _end(self, fault: CannotStart) -> None:
        """Finish the requests that run, and end the process."""
        self._fault, self._server.should_exit = fault, True

    def _note_started(self, engine: Engine) -> None:
        engine.follower.when_outdated = self._end
        collect_rarely()
        if self.waits_for_indexes:
            threading.Thread(target=self._wait_for_indexes, args=(engine,), name="readiness", daemon=True).start()
        else:
            self._report_ready()

    def _wait_for_indexes(self, engine: Engine) -> None:
        stop_at = time.monotonic() + MAX_INDEX_SECONDS
        while time.monotonic() < stop_at and not _is_ready(engine):
            time.sleep(POLL_SECONDS)
        self._report_ready()


def find_schema_fault(settings: Settings) -> CannotStart | None:
    """Return why this version cannot use the database, which a newer one has migrated; None if it may be able to."""
    database = open_database(settings.database, settings.home)
    try:
        with reading(database) as session:
            check_own_schema(session)
    except CannotStart as fault:
        return fault
    except (SQLAlchemyError, AppError) as error:
        log.warning("database.away error=%s", error)
    finally:
        close_database(database)
    return None


def _is_ready(engine: Engine) -> bool:
    try:
        return not list_unready_reasons(engine)
    except (AppError, SQLAlchemyError) as error:
        log.warning("readiness.unknown error=%s", error)
        return False
