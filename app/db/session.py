"""One door to the database: SQLite honestly, PostgreSQL plainly."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.errors import Busy

REQUEST_THREADS = 40  # Starlette's; a pool smaller than that would make requests wait for connections
WRITES = {"writes": True}


def open_database(url: str) -> Engine:
    """SQLite: WAL, waits 10 s for the writer, flushes what was promised; begins are ours (see `writing`)."""
    if not url.startswith("sqlite"):
        return create_engine(url, pool_size=REQUEST_THREADS, max_overflow=24, pool_pre_ping=True)
    database = create_engine(url, pool_size=REQUEST_THREADS + 24, connect_args={"check_same_thread": False})
    event.listen(database, "connect", _prepare_sqlite)
    event.listen(database, "begin", _begin_sqlite)
    return database


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself
    for pragma in ("busy_timeout=10000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def reading(database: Engine) -> Iterator[Session]:
    """A look; nothing may be written through it. On PostgreSQL each statement sees its own moment: see `snapshot`."""
    with Session(database) as session:
        yield session  # closing ends the transaction, and leaves the rows that were read as they are


@contextmanager
def snapshot(database: Engine) -> Iterator[Session]:
    """Several looks at one and the same moment, whatever is committed meanwhile; nothing may be written."""
    steady = {} if database.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
    with Session(database.execution_options(**steady)) as session:
        yield session  # closing ends the transaction, and leaves the rows that were read as they are


@contextmanager
def writing(database: Engine) -> Iterator[Session]:
    """Kept if the block ends, dropped if it raises. On SQLite it is the one writer from its first statement on.

    Raises Busy where the database stayed locked, or is away.
    """
    try:
        with (
            Session(database.execution_options(**WRITES), expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session
    except OperationalError as error:
        raise Busy("the database is busy or away; nothing of this request was kept") from error
