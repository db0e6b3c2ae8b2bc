"""Give back the pages of deleted rows, so that the files of a database hold nothing of them."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sqlalchemy import Engine, text

from app.db.database_file import find_database_path
from app.db.failures import describe_failure
from app.db.session import BUSY_TIMEOUT_MS

CHECKPOINT_TIMEOUT_MS = 300
"""How long a checkpoint waits for readers. Writers wait with it."""
TABLES_WITH_FACES = (
    "faces", "subjects", "labels", "embeddings", "face_coordinates", "clustered_faces", "face_clusters", "answers",
    "jobs", "job_items", "trainings", "evaluations", "deployments", "erasures",
)  # fmt: skip
HEADER_BYTES, MAX_PAGE_BYTES = 100, 65_536
PAGE_HEADER_BYTES = {2: 12, 5: 12, 10: 8, 13: 8}
"""The first byte of a page of a tree -> the bytes before its pointers."""
MAX_KNOWN_PAGES = 2 * 2**24
"""With more, the number with which a page of another kind begins may look like the kind of a page of a tree."""
PAGES_PER_BLOCK, PAGES_PER_LOCK = 1_024, 4_096
LOCK_TRIES = 10


def compact_deleted(database: Engine) -> bool:
    """Remove what deleted rows have left in the database. Returns False if a reader prevents it: try again.

    SQLite overwrites deleted rows at once (`secure_delete`). The write-ahead log, which holds earlier pages, is emptied
    here, and copies of rows that SQLite has moved are overwritten. PostgreSQL marks the space as free; its bytes stay
    until they are overwritten. Raises Busy.
    """
    if database.dialect.name == "sqlite":
        path = find_database_path(str(database.url))
        return _truncate_log(database) and (path is None or _overwrite_moved_rows(database, path))
    tables = ", ".join(TABLES_WITH_FACES)
    _run_alone(database, f"VACUUM (TRUNCATE FALSE) {tables}")  # truncation would lock out readers
    return True


def rewrite_database(database: Engine) -> bool:
    """Write every table anew, without free space. The database is locked meanwhile. Returns as `compact_deleted`."""
    if database.dialect.name == "sqlite":
        _run_alone(database, "VACUUM")
        return _truncate_log(database)
    _run_alone(database, "VACUUM FULL")
    return True


def _truncate_log(database: Engine) -> bool:
    """Move the write-ahead log into the database and cut it to zero bytes. Returns False if it is in use."""
    with _open_cursor(database) as cursor:
        cursor.execute(f"PRAGMA busy_timeout={CHECKPOINT_TIMEOUT_MS}")
        try:
            is_busy, *_ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        return not is_busy


def _run_alone(database: Engine, statement: str) -> None:
    """Run a statement outside of a transaction, as VACUUM demands."""
    if database.dialect.name == "sqlite":
        with _open_cursor(database) as cursor:
            cursor.execute(statement)
        return
    with database.connect().execution_options(isolation_level="AUTOCOMMIT") as opened:
        opened.execute(text(statement))


@contextmanager
def _open_cursor(database: Engine, *, is_kept: bool = True) -> Iterator[sqlite3.Cursor]:
    """Yield a cursor of SQLite outside of a transaction. Raises Busy for any OperationalError, and of its file.

    is_kept: whether others use its connection afterwards
    """
    connection = database.raw_connection()
    try:
        yield connection.cursor()  # type: ignore[misc]
    except (sqlite3.OperationalError, OSError) as error:
        raise describe_failure(error) from error
    finally:
        if not is_kept:
            connection.invalidate()
        connection.close()


def _overwrite_moved_rows(database: Engine, path: Path) -> bool:
    """Overwrite with zeros what lies between the pointers and the rows of the pages of a SQLite database.

    SQLite overwrites deleted rows (`secure_delete`), but not always an earlier copy of a row that it has moved while it
    balanced a tree. Returns False if a reader or other writers prevent it: try again. Raises Busy.
    """
    file = _keep_open(path, path.stat().st_ino)
    layout = _PageLayout.read(file)
    pages = sorted({page for page, _ in _find_unused_bytes(file, layout)}) if layout.is_known else []
    for first in range(0, len(pages), PAGES_PER_LOCK):
        if not _overwrite_alone(database, path, file, layout, pages[first : first + PAGES_PER_LOCK]):
            return False
    return True


def _overwrite_alone(database: Engine, path: Path, file: int, layout: "_PageLayout", pages: Sequence[int]) -> bool:
    """Overwrite the unused bytes of some pages while nobody writes. pages: their offsets. Returns False if others do.

    Each connection has pages in memory, and would write the old bytes again with a page that it changes. It reads them
    anew after another connection has written something, here a number of the database that nothing uses.
    """
    log = Path(f"{path}-wal")
    for _ in range(LOCK_TRIES):
        if not _truncate_log(database):
            return False
        with _open_cursor(database, is_kept=False) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            try:
                if log.exists() and log.stat().st_size:
                    continue  # another wrote meanwhile
                with database.begin():  # raises Busy if the path names another file than the one that is locked
                    if not os.path.samestat(os.fstat(file), path.stat()):
                        return False
                for page in pages:
                    for start, unused in layout.find_unused(os.pread(file, layout.page_bytes, page)):
                        os.pwrite(file, bytes(len(unused)), page + start)
                os.fsync(file)
                [number] = cursor.execute("PRAGMA user_version").fetchone()
                cursor.execute(f"PRAGMA user_version={number}")
                cursor.execute("COMMIT")
                return True
            finally:
                if cursor.connection.in_transaction:
                    cursor.execute("ROLLBACK")
    return False


class _PageLayout(NamedTuple):
    """How the pages of a SQLite database are laid out: see "Database File Format" of SQLite, 1.3 and 1.6.

    usable_bytes: of a page; an extension may keep the rest
    is_known: whether a page begins with its kind only if it is part of a tree
    """

    page_bytes: int
    usable_bytes: int
    is_known: bool

    @classmethod
    def read(cls, file: int) -> "_PageLayout":
        header = os.pread(file, HEADER_BYTES, 0)
        page_bytes = int.from_bytes(header[16:18], "big")
        page_bytes = MAX_PAGE_BYTES if page_bytes == 1 else page_bytes  # its size does not fit into the two bytes
        moves_pages = any(header[52:56])
        is_known = not moves_pages and os.fstat(file).st_size < MAX_KNOWN_PAGES * page_bytes
        return cls(page_bytes, page_bytes - header[20], is_known)

    def find_unused(self, page: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (start, bytes) between the pointers and the rows of a page of a tree, if they are not only zeros.

        A page that is not as SQLite makes them is left alone.
        """
        header_bytes = PAGE_HEADER_BYTES.get(page[0], 0)
        cells, rows = (int.from_bytes(page[at : at + 2], "big") for at in (3, 5))
        start, end = header_bytes + 2 * cells, rows or MAX_PAGE_BYTES
        if not header_bytes or not start <= end <= self.usable_bytes:
            return
        pointers = np.frombuffer(page, ">u2", cells, header_bytes)
        unused = page[start:end]
        if unused.strip(b"\0") and (not cells or pointers.min() >= end):
            yield start, unused


def _find_unused_bytes(file: int, layout: _PageLayout) -> Iterator[tuple[int, bytes]]:
    """Yield (offset of the page, bytes) of what `_PageLayout.find_unused` finds in all pages but the schema's first.

    What is still in the write-ahead log is not read.
    """
    offset = layout.page_bytes
    while block := os.pread(file, PAGES_PER_BLOCK * layout.page_bytes, offset):
        for start in range(0, len(block) - layout.page_bytes + 1, layout.page_bytes):
            if block[start] in PAGE_HEADER_BYTES:
                for _, unused in layout.find_unused(block[start : start + layout.page_bytes]):
                    yield offset + start, unused
        offset += len(block)


@cache
def _keep_open(path: Path, inode: int) -> int:
    """Open a database to read and write its bytes, for as long as the process runs.

    To close it would release the locks that all connections of the process hold on it.
    """
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)
