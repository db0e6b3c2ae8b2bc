"""Stop statements that take too long, and run as many long ones at once as there are cores."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from joblib import cpu_count
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.errors import Busy

INSTRUCTIONS_PER_CHECK = 50_000
"""Of SQLite's virtual machine: some milliseconds, or tenths of a second where each parses much JSON."""
CANCELLED_STATE = "57014"
"""How PostgreSQL reports a statement that was cancelled."""
MAX_TURN_WAIT_SECONDS = 1.0
TURNS = threading.BoundedSemaphore(cpu_count())


class StatementTooSlow(Exception):
    """A statement was stopped."""


@contextmanager
def limit_statements(session: Session, seconds: float) -> Iterator[None]:
    """Stop the statements of this block after so many seconds in all on SQLite, each of them on PostgreSQL.

    On SQLite, which runs in this process, they are seconds of processor time.
    Raises StatementTooSlow; the transaction then has to end.
    """
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    limit = _limit_sqlite(session, seconds) if is_sqlite else _limit_postgres(session, seconds)
    try:
        with limit:
            yield
    except OperationalError as error:
        is_interrupted = getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
        if is_interrupted or getattr(error.orig, "sqlstate", None) == CANCELLED_STATE:
            raise StatementTooSlow from error
        raise


@contextmanager
def _limit_sqlite(session: Session, seconds: float) -> Iterator[None]:
    driver = session.connection().connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    end = time.thread_time() + seconds
    driver.set_progress_handler(lambda: time.thread_time() > end, INSTRUCTIONS_PER_CHECK)
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)


@contextmanager
def _limit_postgres(session: Session, seconds: float) -> Iterator[None]:
    session.execute(text(f"SET LOCAL statement_timeout = {round(1000 * seconds)}"))
    yield
    session.execute(text("SET LOCAL statement_timeout TO DEFAULT"))


@contextmanager
def wait_for_turn(session: Session) -> Iterator[None]:
    """Read a whole collection, or compute something of it, in a request. Raises Busy if too many do.

    They use the cores of this process for seconds, during which the gate would let further requests in: it takes one
    that holds its slot for long for one that waits.

    session: for reading; a new transaction begins after the wait, so objects that it read before are read anew when
    they are used
    """
    if not TURNS.acquire(timeout=MAX_TURN_WAIT_SECONDS):
        raise Busy("more requests that read whole collections arrive than can be answered in time; try again shortly")
    try:
        session.rollback()  # on SQLite, a transaction from before the wait would not see what has changed meanwhile
        yield
    finally:
        TURNS.release()
