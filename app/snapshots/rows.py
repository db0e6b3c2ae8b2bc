"""Copy rows between databases, in the table `snapshot_files` of a snapshot's rows too."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from app.db.failures import describe_failure
from app.db.migrate import upgrade_database
from app.db.tables import Base
from app.snapshots.contents import NEVER_COPIED
from ml.files import sync_path

ROWS_PER_BATCH = 2000
MAX_NUMBERS_MEANWHILE = 100_000
"""That others may take of a sequence while PostgreSQL carries out the statement that moves it."""
RESERVATION_LOCK = 0x6C696B65
"""The advisory lock of PostgreSQL under which numbers are reserved."""
Row = dict[str, Any]
Report = Callable[[str, int, int | None], None]
"""Called with the step, how much of it is done, and how much it is in all, None where that is not known."""

SNAPSHOT_FILES = Table(
    "snapshot_files",
    MetaData(),
    Column("path", String, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
)
"""The files of a snapshot by their path in `files.tar`."""


@contextmanager
def create_rows(path: Path) -> Iterator[Engine]:
    """Create the database of a snapshot, which is one file on disk once the block has ended."""
    path.write_bytes(_make_empty_rows())
    database = open_rows(path)
    try:
        yield database
    finally:
        database.dispose()
    seal_rows(path)


@cache
def _make_empty_rows() -> bytes:
    """Return a database of the newest schema without rows, made once in a process: that takes a tenth of a second."""
    with TemporaryDirectory(prefix="likeness-rows-") as folder:
        path = Path(folder) / "rows.sqlite"
        upgrade_database(f"sqlite:///{path}", None)
        database = open_rows(path)
        try:
            with database.begin() as connection:
                for table in reversed(Base.metadata.sorted_tables):
                    connection.execute(table.delete())
                SNAPSHOT_FILES.create(connection)
            with database.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            database.dispose()
        return path.read_bytes()


def raise_unless_damaged(error: DatabaseError | sqlite3.Error) -> None:
    """Raises Busy for an error of SQLite that says nothing of the rows, as on a full disk: later, they can be read."""
    original = error.orig if isinstance(error, DatabaseError) else error
    code = getattr(original, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # a text that is not UTF-8 has none
    if isinstance(original, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:
        raise describe_failure(error) from error


def open_rows(path: Path) -> Engine:
    """Open the rows of a snapshot, so that what is deleted takes with it what belongs to it."""
    rows = create_engine(f"sqlite:///{path}")
    event.listen(rows, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys=ON"))
    return rows


def seal_rows(path: Path) -> None:
    """Bring all of a snapshot's rows into the one file, without what was deleted from it.

    Raises OperationalError if the disk is full.
    """
    database = create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    try:
        with database.connect() as connection:
            for statement in ("PRAGMA journal_mode=DELETE", "VACUUM"):
                connection.exec_driver_sql(statement)
    finally:
        database.dispose()
    sync_path(path)


def read_batches(session: Session, statement: Any) -> Iterator[list[Row]]:
    """Yield the rows of a statement on one table, column -> value, in batches."""
    with session.connection().execution_options(yield_per=ROWS_PER_BATCH).execute(statement) as result:
        for part in result.partitions():
            yield [dict(row._mapping) for row in part]


def insert_rows(connection: Any, table: Table, rows: list[Row]) -> None:
    """Insert rows as they are."""
    if rows:
        connection.execute(insert(table), rows)


def list_copied_tables() -> list[Table]:
    """List the tables that snapshots hold, those that others refer to first."""
    left_out = {row.__table__ for row in NEVER_COPIED}
    return [table for table in Base.metadata.sorted_tables if table not in left_out]


def read_sequences(session: Session) -> dict[str, int]:
    """Return table -> the highest number that was ever given to one of its rows, 0 if none was."""
    return {table.name: _read_sequence(session, table) for table in list_numbered_tables()}


def list_numbered_tables() -> list[Table]:
    """List the tables whose rows the database numbers."""
    return [t for t in Base.metadata.sorted_tables if t.autoincrement_column is not None]


def _read_sequence(session: Session, table: Table) -> int:
    highest = session.scalar(select(func.max(table.c.pk))) or 0
    if session.get_bind().dialect.name == "sqlite":
        has_sequences = session.scalar(text("select 1 from sqlite_master where name = 'sqlite_sequence'"))
        given = text("select seq from sqlite_sequence where name = :name")
        return max(highest, (session.scalar(given, {"name": table.name}) or 0) if has_sequences else 0)
    sequence = session.scalar(select(func.pg_get_serial_sequence(table.name, "pk")))
    return max(highest, session.scalar(text(f"select last_value from {sequence} where is_called")) or 0)


def reserve_numbers(session: Session, table: Table, count: int) -> int:
    """Return the number before the first of `count` numbers in a row, which no other row of the table gets.

    On PostgreSQL, others take numbers meanwhile, also those whose transactions cannot be seen yet. So the sequence is
    moved beyond the reserved numbers at once: a sequence knows no transaction. One restore at a time reserves.
    """
    highest = _read_sequence(session, table)
    if session.get_bind().dialect.name == "sqlite":
        return highest  # this transaction is the only writer until its rows are there
    session.execute(select(func.pg_advisory_xact_lock(RESERVATION_LOCK)))
    sequence = func.pg_get_serial_sequence(table.name, "pk")
    last = func.greatest(func.nextval(sequence), highest) + MAX_NUMBERS_MEANWHILE + count
    return int(session.execute(select(func.setval(sequence, last))).scalar_one()) - count


def raise_sequences(session: Session, sequences: dict[str, int]) -> None:
    """Have the database give numbers above these from now on: the number of an erased face is never given again."""
    for table in list_numbered_tables():
        highest = max(sequences.get(table.name, 0), _read_sequence(session, table))
        if not highest:
            continue
        if session.get_bind().dialect.name == "postgresql":
            session.execute(select(func.setval(func.pg_get_serial_sequence(table.name, "pk"), highest)))
        elif table.dialect_options["sqlite"]["autoincrement"]:
            named = {"name": table.name, "seq": highest}
            session.execute(text("delete from sqlite_sequence where name = :name"), named)
            session.execute(text("insert into sqlite_sequence (name, seq) values (:name, :seq)"), named)
