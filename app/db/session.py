"""Open the database, SQLite or PostgreSQL, and sessions that read or write."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from app.errors import Busy

REQUEST_THREADS = 40
"""The number of threads that Starlette has. With fewer connections, requests would wait for one."""
WRITE_OPTIONS = {"writes": True}


def open_database(url: str) -> Engine:
    """Open a database. SQLite runs in WAL mode, waits 10 s for a lock, and syncs the disk at every commit."""
    if not url.startswith("sqlite"):
        return create_engine(url, pool_size=REQUEST_THREADS, max_overflow=24, pool_pre_ping=True)
    database = create_engine(url, pool_size=REQUEST_THREADS + 24, connect_args={"check_same_thread": False})
    event.listen(database, "connect", _prepare_sqlite)
    event.listen(database, "begin", _begin_sqlite)
    return database


def close_database(database: Engine) -> None:
    """Close every connection; one that a thread still uses is closed when the thread returns it."""
    event.listen(database, "checkin", _close_returned)
    database.dispose()


def _close_returned(connection: Any, record: ConnectionPoolEntry) -> None:
    if connection is not None:  # None: it was invalidated before it was returned
        record.invalidate()


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # keeps the driver from beginning transactions: see _begin_sqlite
    for pragma in ("busy_timeout=10000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def reading(database: Engine) -> Iterator[Session]:
    """Open a session for reading only. On PostgreSQL, each statement sees what is committed by then: see `snapshot`."""
    with Session(database) as session:
        yield session  # closing it ends the transaction; the rows that were read stay usable


@contextmanager
def snapshot(database: Engine) -> Iterator[Session]:
    """Open a session for reading only, whose statements all see the same state, whatever is committed meanwhile."""
    options = {} if database.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
    with Session(database.execution_options(**options)) as session:
        yield session  # closing it ends the transaction; the rows that were read stay usable


@contextmanager
def writing(database: Engine) -> Iterator[Session]:
    """Open a session whose changes are committed at the end of the block, or rolled back if the block raises.

    On SQLite, it is the only writer from its first statement on.
    Raises Busy if the database stays locked or cannot be reached.
    """
    try:
        with (
            Session(database.execution_options(**WRITE_OPTIONS), expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session
    except OperationalError as error:
        raise Busy("the database is busy or cannot be reached; nothing of this request was stored") from error
