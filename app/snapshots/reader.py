"""Open a snapshot to restore it: check it, and bring its rows to the schema of this version."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Engine, ExceptionContext, create_engine, event, select
from sqlalchemy.exc import DatabaseError, OperationalError, StatementError
from sqlalchemy.orm import Session

from app.db.migrate import upgrade_database
from app.db.schema import list_known_revisions
from app.errors import Busy, Invalid
from app.snapshots.files import SnapshotFile, check_path, read_files
from app.snapshots.manifest import FILES, ROWS, SnapshotManifest
from app.snapshots.row_checks import check_rows
from app.snapshots.rows import SNAPSHOT_FILES, Report, raise_unless_damaged
from ml.files import hash_file, parse_json

FILES_PER_REPORT = 500
FILE_NAMES = (("collections", "id"), ("faces", "image_id"), ("models", "id"))


@dataclass(frozen=True, eq=False)
class OpenedSnapshot:
    """A snapshot whose rows have the schema of this version. rows: a database of their copy"""

    folder: Path
    manifest: SnapshotManifest
    rows: Engine

    def list_files(self) -> dict[str, SnapshotFile]:
        """Return path -> file of the snapshot's tar. Raises Invalid if one would be written elsewhere."""
        with Session(self.rows) as session:
            files = {row.path: SnapshotFile(*row) for row in session.execute(select(SNAPSHOT_FILES))}
        for path in files:
            check_path(path)
        return files

    def read_files(self, report: Report) -> Iterator[tuple[str, bytes]]:
        """Yield the path and bytes of every file. Raises Invalid if one is missing or has changed."""
        expected = self.list_files()
        for count, file in enumerate(read_files(self.folder / FILES, expected), 1):
            yield file
            if count % FILES_PER_REPORT == 0 or count == len(expected):
                report("files", count, len(expected))


@contextmanager
def open_snapshot(folder: Path) -> Iterator[OpenedSnapshot]:
    """Open a snapshot. Its rows are checked and copied; its files are checked as they are read.

    Raises NotFound if there is none, Invalid if it is damaged or of a later version.
    """
    manifest = SnapshotManifest.read(folder)
    with tempfile.TemporaryDirectory(prefix="likeness-restore-") as temporary:
        path = Path(temporary) / ROWS
        copy_rows(folder, manifest, path)
        rows = create_engine(f"sqlite:///{path}", json_deserializer=parse_json)
        event.listen(rows, "handle_error", partial(_refuse_unreadable_rows, folder))
        try:
            with refuse_unfit_rows(folder):
                check_rows(folder, rows)
            yield OpenedSnapshot(folder, manifest, rows)
        finally:
            rows.dispose()


def check_unchanged(opened: OpenedSnapshot) -> None:
    """Raises Busy if something was erased from the snapshot since it was opened: it is to be opened again."""
    if SnapshotManifest.read(opened.folder).rows_sha256 != opened.manifest.rows_sha256:
        raise Busy("something was erased from the snapshot while it was restored; restore it again")


def _refuse_unreadable_rows(folder: Path, context: ExceptionContext) -> None:
    """Raises Invalid in place of an error in the rows themselves, which would be taken for a database that is away."""
    error = context.original_exception
    if isinstance(error, sqlite3.OperationalError):
        raise_unless_damaged(error)
        raise _make_unreadable_error(folder, error) from error


def _make_unreadable_error(folder: Path, error: Exception) -> Invalid:
    return Invalid(f"the rows of {folder} cannot be read: {error}")


def copy_rows(folder: Path, manifest: SnapshotManifest, path: Path) -> None:
    """Copy the rows of a snapshot, and bring the copy to the schema of this version.

    Raises Invalid if they are damaged or of a later version, Busy if the disk is full.
    """
    rows = folder / manifest.rows_file
    if manifest.schema not in list_known_revisions():
        raise Invalid(
            f"{folder} was written by a later version of Likeness ({manifest.product}, schema {manifest.schema}); "
            "restore it with that version or a later one"
        )
    try:
        is_whole = hash_file(rows) == manifest.rows_sha256
    except OSError as error:
        raise Invalid(f"{rows} cannot be read: {error}; use another snapshot") from error
    if not is_whole:
        raise Invalid(f"{rows} is damaged: its bytes have changed since it was written; use another snapshot")
    shutil.copyfile(rows, path)
    _check_schema(folder, path)
    try:
        upgrade_database(f"sqlite:///{path}", None)
    except DatabaseError as error:
        raise_unless_damaged(error)
        raise Invalid(f"the rows of {folder} cannot be brought to this version: {error.orig}") from error
    _check_names(folder, path)


def _check_schema(folder: Path, path: Path) -> None:
    """Raises Invalid if there is anything but plain tables and indexes: a view can have endless rows."""
    is_plain = "type in ('table', 'index') and ifnull(sql, '') not like 'create virtual%'"
    try:
        with closing(sqlite3.connect(path)) as rows:
            extra = rows.execute(f"select type, name from sqlite_master where not ({is_plain}) limit 1").fetchone()
    except sqlite3.DatabaseError as error:
        raise_unless_damaged(error)
        raise _make_unreadable_error(folder, error) from error
    if extra:
        raise Invalid(f"{folder} was altered: it has the {extra[0]} {extra[1]!r}, where only tables belong")


def _check_names(folder: Path, path: Path) -> None:
    """Raises Invalid if a name of which rows make the path of a file is not of the form that the service makes."""
    with closing(sqlite3.connect(path)) as rows:
        for table, column in FILE_NAMES:
            bad = f"{column} glob '*[^A-Za-z0-9_.-]*'"
            try:
                forged = rows.execute(f"select {column} from {table} where {bad} limit 1").fetchone()
            except sqlite3.OperationalError as error:
                raise_unless_damaged(error)
                raise _make_unreadable_error(folder, error) from error
            if forged:
                raise Invalid(f"{folder} was altered: {forged[0]!r} cannot be the {column} of a row of {table}")


@contextmanager
def refuse_unfit_rows(folder: Path) -> Iterator[None]:
    """Raises Invalid in place of what the database, or a column's type, says of rows that it cannot store."""
    try:
        yield
    except OperationalError:
        raise  # the database is away or full
    except (StatementError, ValueError, OverflowError, RecursionError) as error:
        reason = error.orig if isinstance(error, StatementError) else error
        raise Invalid(f"{folder} has rows that cannot be stored: {reason}") from error


def check_snapshot(folder: Path, report: Report) -> SnapshotManifest:
    """Read a whole snapshot and compare it with its hashes. Raises NotFound, Invalid."""
    with open_snapshot(folder) as opened:
        for _ in opened.read_files(report):
            pass
        return opened.manifest
