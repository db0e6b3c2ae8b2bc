"""What deleted rows have left in a database is removed."""

import os
import random
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.config import Settings
from app.db.compaction import compact_deleted, read_unused_bytes, rewrite_database
from app.db.session import close_database, open_database, writing
from app.db.tables import Collection
from app.errors import Busy
from tests.databases import migrate

COLLECTIONS = 2_000


@contextmanager
def limit_files(max_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_makes_a_compaction_wait_and_not_fail(tmp_path: Path) -> None:
    """Else the job of an erasure would end, and those that wait for it with it."""
    migrate(settings := Settings(home=tmp_path))
    file = tmp_path / "likeness.sqlite"
    database = open_database(settings.database, settings.home)
    try:
        with writing(database) as session:
            session.add_all([Collection(id=f"c{number}") for number in range(COLLECTIONS)])
        size = os.path.getsize(file)
        with limit_files(size):
            for compact in (compact_deleted, rewrite_database):
                with pytest.raises(Busy, match="database"):
                    compact(database)
        assert compact_deleted(database)
        assert os.path.getsize(file) > size
    finally:
        close_database(database)
    with sqlite3.connect(file) as opened:
        assert opened.execute("select count(*) from collections").fetchone() == (COLLECTIONS,)
    opened.close()


def write_into_unused_bytes(file: Path, text: bytes) -> None:
    """Write a text where SQLite leaves earlier copies of rows: into the widest gap between pointers and rows."""
    data = bytearray(file.read_bytes())
    page_bytes = int.from_bytes(data[16:18], "big")
    gaps = []
    for page in range(page_bytes, len(data), page_bytes):
        if data[page] in (10, 13):
            cells, rows = (int.from_bytes(data[page + at : page + at + 2], "big") for at in (3, 5))
            gaps.append((rows - 8 - 2 * cells, page + rows))
    width, end = max(gaps)
    assert width > 2 * len(text)
    with file.open("r+b") as opened:
        opened.seek(end - len(text))
        opened.write(text)


def test_copies_of_deleted_rows_that_sqlite_leaves_are_among_the_unused_bytes(tmp_path: Path) -> None:
    """Some versions of SQLite, as 3.40, leave a few in spite of `secure_delete`."""
    file = tmp_path / "database.sqlite"
    draw = random.Random(0)
    database = sqlite3.connect(file, isolation_level=None)
    database.execute("pragma secure_delete=on")
    database.execute("create table people(pk integer primary key, id text unique, note text)")
    stored, deleted = list[str](), list[str]()
    for number in range(1_500):
        name = f"person-{draw.randrange(10**9):09}-{number}"
        stored.append(name)
        database.execute("insert into people(id, note) values(?, '')", (name,))
        database.execute("update people set note=? where id=?", ("x" * draw.randrange(300), draw.choice(stored)))
        if number % 2:
            deleted.append(stored.pop(draw.randrange(len(stored))))
            database.execute("delete from people where id=?", (deleted[-1],))
    database.close()
    left = [name for name in deleted if name.encode() in file.read_bytes()]
    unused = b"\n".join(read_unused_bytes(file))
    assert [name for name in left if name.encode() not in unused] == []
    assert sum(name.encode() in unused for name in stored) < 0.05 * len(stored), "rows themselves are not among them"
    write_into_unused_bytes(file, b"person-of-before")
    assert b"person-of-before" in b"\n".join(read_unused_bytes(file))
