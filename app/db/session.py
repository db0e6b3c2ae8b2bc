"""Open the database, SQLite or PostgreSQL, and sessions that read or write."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Executable, create_engine, event, make_url, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from app.db.database_file import find_database_path, watch_database_file
from app.db.failures import describe_failure, parse_stored_json, report_damage, report_internal_error
from app.db.servers.connections import watch_server
from app.db.servers.reach import watch_reach
from app.db.visibility import RestrictedSession

REQUEST_THREADS = 40
"""The number of threads that Starlette has. With fewer connections, requests would wait for one."""
MAX_CONNECTIONS = REQUEST_THREADS + 24
FAULTY_STATEMENT_STATES = ("42", "54")
"""The classes of PostgreSQL's errors that a repetition does not help: wrong statements, and too complex ones."""
CACHED_STATEMENTS = 48
"""Of each connection to SQLite. The last connection that was returned is used first, so that few hold any."""
CONNECTION_SECONDS = 300.0
"""A connection to SQLite that is older is opened anew when it is used next, which takes 1 ms. One that is used rarely
would else fill its caches, of up to 2.5 MiB, for hours, and there are as many as were ever used at once."""
BUSY_TIMEOUT_MS = 10_000
CONNECTION_LIMITS = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
"""Of connections to PostgreSQL, in seconds but for `tcp_user_timeout`, unless the address states others. A host that
vanishes closes no connection: without limits, threads would wait for it for a quarter of an hour."""
RAW_ROWS_PER_BATCH = 500
"""Fewer than after how many new objects Python looks for cycles (700), which would take as long as reading them."""
PAGE_BYTES = 16_384
"""Of a new SQLite database. In pages of SQLite's 4 KiB, an embedding of 512 numbers has one to itself and half of it is
empty, and an import of a million vectors takes a quarter longer; a single row is written in 0.4 ms in place of 0.2."""
CACHE_KIB, LARGE_CACHE_KIB = 2_000, 65_536
MAX_IDLE_WRITE_SECONDS = 60
"""After so long without a statement PostgreSQL rolls a change back. A process that is frozen, or whose host vanishes,
would keep its locks, and nobody else could write to its collection."""
WRITE_OPTIONS = {"writes": True}
CHECK_OPTION = "check"
MISSING_TABLE = "no such table"


def open_database(url: str, home: Path | None, kept_connections: int = REQUEST_THREADS) -> Engine:
    """Open a database.

    SQLite runs in WAL mode, waits 10 s for a lock, syncs the disk at every commit, and overwrites what is deleted.
    Transactions raise Busy once its file is not the one that was opened, or if it is damaged.
    Errors do not show the values of a statement, which would be names in a log.
    home: of the service, whose processes know whether they hear of changes, and which servers of PostgreSQL were left
        behind; None: of no service
    kept_connections: how many stay open while nobody uses them; those beyond are closed when they are returned
    """
    pool = {"pool_size": kept_connections, "max_overflow": MAX_CONNECTIONS - kept_connections}
    if not url.startswith("sqlite"):
        options = {"pool_pre_ping": True, "hide_parameters": True}
        stated = make_url(url).query
        limits = {name: value for name, value in CONNECTION_LIMITS.items() if name not in stated}
        database = create_engine(url, connect_args=limits, **pool, **options)
        event.listen(database, "handle_error", report_internal_error)
        event.listen(database, "begin", _begin_postgres)
        watch_server(database, home)
        watch_reach(database, home)
        return database
    database = create_engine(
        url,
        pool_use_lifo=True,
        pool_recycle=CONNECTION_SECONDS,
        hide_parameters=True,
        connect_args={"check_same_thread": False, "cached_statements": CACHED_STATEMENTS},
        json_deserializer=parse_stored_json,
        **pool,
    )
    event.listen(database, "handle_error", report_damage)
    event.listen(database, "connect", _prepare_sqlite)
    path = find_database_path(url)
    if path is not None:
        watch_database_file(database, path)
    watch_reach(database, home)
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
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        f"page_size={PAGE_BYTES}",  # of a new database, and before anything is written to it
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "secure_delete=ON",
    ):
        try:
            connection.execute(f"PRAGMA {pragma}")
        except UnicodeDecodeError as error:  # in a message about its schema
            raise sqlite3.DatabaseError("database disk image is malformed") from error


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _begin_postgres(connection: Connection) -> None:
    if connection.get_execution_options().get("writes", False):
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{MAX_IDLE_WRITE_SECONDS}s'")


def is_temporary(error: OperationalError) -> bool:
    """Return whether the state of the database caused an error, so that the statement may succeed later.

    A statement that is too complex fails every time. A table that is missing can be restored.
    """
    if MISSING_TABLE in str(error.orig):
        return True
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return int(code) & 0xFF != sqlite3.SQLITE_ERROR  # the low byte is the primary result code
    return not (getattr(error.orig, "sqlstate", None) or "").startswith(FAULTY_STATEMENT_STATES)


def _open_session(database: Engine, collections: Sequence[str], **options: Any) -> Session:
    return RestrictedSession(database, collections, **options) if collections else Session(database, **options)


@contextmanager
def reading(database: Engine, collections: Sequence[str] = ()) -> Iterator[Session]:
    """Open a session for reading only. On PostgreSQL, each statement sees what is committed by then: see `snapshot`.

    collections: whose rows the session sees; empty: all
    """
    with _open_session(database, collections) as session:
        yield session  # closing it ends the transaction; the rows that were read stay usable


@contextmanager
def snapshot(database: Engine) -> Iterator[Session]:
    """Open a session for reading only, whose statements all see the same state, whatever is committed meanwhile."""
    if database.dialect.name != "sqlite":
        database = database.execution_options(isolation_level="REPEATABLE READ")
    with Session(database) as session:
        yield session  # closing it ends the transaction; the rows that were read stay usable


def stream_raw_rows(
    session: Session,
    chosen: Executable,
    size: int = RAW_ROWS_PER_BATCH,
    params: Mapping[str, Any] | None = None,
) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Yield small batches of rows as the driver returns them: a million objects would take longer than to read them.

    Nothing is converted: SQLite has 0 and 1 for booleans. size: of a batch, `RAW_ROWS_PER_BATCH` at most
    params: of the statement
    Raises Busy or OperationalError, as other queries do.
    """
    size = min(size, RAW_ROWS_PER_BATCH)
    with closing(session.connection().execute(chosen, params, execution_options={"yield_per": size})) as result:
        while result.cursor is not None:
            rows = result.cursor_strategy.fetchmany(result, result.cursor, size)
            if rows:
                yield rows


@contextmanager
def large_cache(session: Session) -> Iterator[None]:
    """Let a transaction on SQLite hold 64 MiB of pages. Rows that are inserted in bulk touch pages of all indexes.

    With the usual 2 MiB, a page is written and read again several times before the commit.
    """
    if session.get_bind().dialect.name != "sqlite":
        yield
        return
    connection = session.connection()
    connection.exec_driver_sql(f"PRAGMA cache_size=-{LARGE_CACHE_KIB}")
    try:
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA cache_size=-{CACHE_KIB}")


def check_writes(database: Engine, check: Callable[[Session, bool], None] | None) -> Engine:
    """Return the same database, whose every transaction of `writing` is checked at its start and before its commit.

    check: raises to have the transaction rolled back, and is given whether the commit is next. What it has read at the
    start can have changed before the commit on PostgreSQL, and not on SQLite. None: no transaction is checked
    """
    return database.execution_options(**{CHECK_OPTION: check})


@contextmanager
def writing(database: Engine, collections: Sequence[str] = ()) -> Iterator[Session]:
    """Open a session whose changes are committed at the end of the block, or rolled back if the block raises.

    On SQLite, it is the only writer from its first statement on. collections: whose rows the session sees; empty: all
    Raises Busy if the database stays locked, or cannot be reached or written, OutcomeUnknown, a Busy, if the connection
    is lost during the commit, OperationalError if it cannot carry out a statement.
    """
    is_committing = False
    try:
        with (
            _open_session(database.execution_options(**WRITE_OPTIONS), collections, expire_on_commit=False) as session,
            session.begin(),
        ):
            check = database.get_execution_options().get(CHECK_OPTION)
            if check is not None:
                check(session, False)
            yield session
            session.flush()
            if check is not None:
                check(session, True)
            is_committing = True
    except OperationalError as error:
        if not is_temporary(error):
            raise
        raise describe_failure(error, is_committing=is_committing) from error


def check_transaction(session: Session) -> None:
    """Check that the server has not ended the transaction: see `MAX_IDLE_WRITE_SECONDS`. Its locks would be gone.

    What cannot be rolled back, such as the removal of a file under a lock, is done at once after it.
    Raises OperationalError.
    """
    session.execute(select(1))
