"""Give back the pages of deleted rows, so that the files of a database hold nothing of them."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from sqlalchemy import Engine, text

from app.db.failures import describe_failure
from app.db.session import BUSY_TIMEOUT_MS

CHECKPOINT_TIMEOUT_MS = 300
"""How long a checkpoint waits for readers. Writers wait with it."""
TABLES_WITH_FACES = (
    "faces", "subjects", "labels", "embeddings", "face_coordinates", "clustered_faces", "face_clusters", "answers",
    "jobs", "job_items", "trainings", "evaluations", "deployments", "erasures",
)  # fmt: skip
PAGE_SIZE_OFFSET, MAX_PAGE_BYTES = 16, 65_536
PAGES_PER_BLOCK = 1_024
INTERIOR_TYPES, LEAF_TYPES = (2, 5), (10, 13)
"""The first byte of a page of a B-tree. Pages of other kinds begin with a page number or with zeros."""
INTERIOR_HEADER_BYTES, LEAF_HEADER_BYTES = 12, 8


def compact_deleted(database: Engine) -> bool:
    """Remove what deleted rows have left in the database. Returns False if a reader prevents it: try again.

    SQLite overwrites deleted rows at once (`secure_delete`), and the write-ahead log, which holds earlier pages, is
    emptied here. PostgreSQL marks the space as free; its bytes stay until they are overwritten.
    """
    if database.dialect.name == "sqlite":
        return _truncate_log(database)
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
def _open_cursor(database: Engine) -> Iterator[sqlite3.Cursor]:
    """Yield a cursor of SQLite outside of a transaction. Raises Busy for any OperationalError."""
    connection = database.raw_connection()
    try:
        yield connection.cursor()  # type: ignore[misc]
    except sqlite3.OperationalError as error:
        raise describe_failure(error) from error
    finally:
        connection.close()


def read_unused_bytes(path: Path) -> Iterator[bytes]:
    """Yield what lies between the pointers and the rows of the pages of a database, if it is not only zeros.

    SQLite overwrites deleted rows (`secure_delete`), but not always an earlier copy of a row that it has moved while it
    balanced a tree. What is still in the write-ahead log is not read.
    """
    file = _keep_open(path, path.stat().st_ino)
    page_bytes = int.from_bytes(os.pread(file, 2, PAGE_SIZE_OFFSET), "big")
    page_bytes = MAX_PAGE_BYTES if page_bytes == 1 else page_bytes  # its size does not fit into the two bytes
    offset = page_bytes  # the first page holds the schema alone
    while block := os.pread(file, PAGES_PER_BLOCK * page_bytes, offset):
        offset += len(block)
        pages = np.frombuffer(block, np.uint8, len(block) // page_bytes * page_bytes).reshape(-1, page_bytes)
        for page in pages[np.isin(pages[:, 0], (*INTERIOR_TYPES, *LEAF_TYPES))]:
            header_bytes = INTERIOR_HEADER_BYTES if page[0] in INTERIOR_TYPES else LEAF_HEADER_BYTES
            cells, start = (int.from_bytes(page[at : at + 2].tobytes(), "big") for at in (3, 5))
            unused = page[header_bytes + 2 * cells : start or MAX_PAGE_BYTES]
            if unused.any():
                yield unused.tobytes()


@cache
def _keep_open(path: Path, inode: int) -> int:
    """Open a database to read its bytes, for as long as the process runs.

    To close it would release the locks that all connections of the process hold on it.
    """
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
