"""What deleted rows have left in a database is removed."""

import os
import random
import resource
import shutil
import sqlite3
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, select, text

from app.config import Settings
from app.db import compaction
from app.db.compaction import compact_deleted, rewrite_database
from app.db.session import close_database, open_database, reading, writing
from app.db.tables import Collection
from app.errors import Busy
from tests.databases import migrate

COLLECTIONS = 2_000
REMNANT = b"person-of-before"
CHANGE_EVERY_PAGE = "update collections set description=replace(description, 'x', 'y')"
"""In place, as no row changes its length: the unused bytes stay as they are."""


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


def read_unused_bytes(path: Path) -> Iterator[bytes]:
    """Yield the bytes that a compaction would overwrite."""
    file = compaction._keep_open(path, path.stat().st_ino)
    yield from (unused for _, unused in compaction._find_unused_bytes(file, compaction._PageLayout.read(file)))


def write_into_unused_bytes(file: Path, remnant: bytes, beside: bytes = b"") -> None:
    """Write a text where SQLite leaves earlier copies of rows: into the widest gap between pointers and rows.

    beside: what the page holds too
    """
    data = bytearray(file.read_bytes())
    page_bytes = int.from_bytes(data[16:18], "big")
    gaps = []
    for page in range(page_bytes, len(data), page_bytes):
        if data[page] in (10, 13) and beside in data[page : page + page_bytes]:
            cells, rows = (int.from_bytes(data[page + at : page + at + 2], "big") for at in (3, 5))
            gaps.append((rows - 8 - 2 * cells, page + rows))
    width, end = max(gaps)
    assert width > 2 * len(remnant)
    with file.open("r+b") as opened:
        opened.seek(end - len(remnant))
        opened.write(remnant)


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
    write_into_unused_bytes(file, REMNANT)
    assert REMNANT in b"\n".join(read_unused_bytes(file))


@pytest.fixture
def collections(tmp_path: Path) -> Iterator[Engine]:
    """A database with some pages of collections, in the file of which an earlier copy of a row was left."""
    migrate(settings := Settings(home=tmp_path))
    database = open_database(settings.database, settings.home)
    with writing(database) as session:
        session.add_all([Collection(id=f"c{number:04}", description="x" * 99) for number in range(0, COLLECTIONS, 2)])
    assert compact_deleted(database)
    write_into_unused_bytes(tmp_path / "likeness.sqlite", REMNANT, beside=b"x" * 99)
    yield database
    close_database(database)


def test_a_copy_of_a_row_that_sqlite_has_moved_is_overwritten(collections: Engine, tmp_path: Path) -> None:
    file = tmp_path / "likeness.sqlite"
    assert REMNANT in file.read_bytes()
    assert compact_deleted(collections)
    assert REMNANT not in file.read_bytes()
    assert list(read_unused_bytes(file)) == []
    with sqlite3.connect(file) as opened:
        assert opened.execute("pragma integrity_check").fetchone() == ("ok",)
        assert opened.execute("select count(*) from collections").fetchone() == (COLLECTIONS // 2,)
    opened.close()


def test_a_connection_that_read_a_page_meanwhile_does_not_write_its_unused_bytes_again(
    collections: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "likeness.sqlite"
    with sqlite3.connect(file, isolation_level=None) as opened:
        opened.execute("pragma secure_delete=on")

        def read_both(*arguments: int) -> bytes:
            opened.execute("select * from collections").fetchall()
            return read_file(*arguments)

        read_file = os.pread
        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", read_both)
            assert compact_deleted(collections)
        opened.execute(CHANGE_EVERY_PAGE)
        opened.execute("pragma wal_checkpoint")
        assert REMNANT not in file.read_bytes()
    opened.close()


def test_the_connection_of_a_compaction_does_not_write_what_it_had_read_before(
    collections: Engine, tmp_path: Path
) -> None:
    collections.dispose()
    with reading(collections) as session:
        assert session.scalars(select(Collection.description)).all()
    assert compact_deleted(collections)
    with writing(collections) as session:
        session.execute(text(CHANGE_EVERY_PAGE))
    with sqlite3.connect(tmp_path / "likeness.sqlite") as opened:
        opened.execute("pragma wal_checkpoint")
    opened.close()
    assert REMNANT not in (tmp_path / "likeness.sqlite").read_bytes()


def test_what_another_writes_before_the_lock_is_held_is_waited_for(
    collections: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "likeness.sqlite"
    truncate_log, calls = compaction._truncate_log, list[bool]()
    with sqlite3.connect(file, isolation_level=None) as opened:

        def write_after_second(database: Engine) -> bool:
            calls.append(truncate_log(database))
            if len(calls) == 2:
                opened.execute(CHANGE_EVERY_PAGE)
            return calls[-1]

        monkeypatch.setattr(compaction, "_truncate_log", write_after_second)
        assert compact_deleted(collections)
        opened.execute("pragma wal_checkpoint")
    opened.close()
    assert calls == [True] * 3
    assert REMNANT not in file.read_bytes()


def test_while_others_write_nothing_is_lost_and_no_copy_stays(collections: Engine, tmp_path: Path) -> None:
    file = tmp_path / "likeness.sqlite"
    draw, stopping = random.Random(0), threading.Event()
    written: list[str] = []

    def write() -> None:
        while not stopping.is_set():
            name = f"{draw.randrange(10**9):09}"
            with writing(collections) as session:
                session.add(Collection(id=name))
                for stored in written[-2:]:
                    session.get_one(Collection, stored).description = "z" * draw.randrange(300)
            written.append(name)

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        outcomes = [compact_deleted(collections) for _ in range(30)]
        stopping.set()
        writer.result()
    assert any(outcomes)
    assert compact_deleted(collections)
    assert list(read_unused_bytes(file)) == []
    with sqlite3.connect(file) as opened:
        assert opened.execute("pragma integrity_check").fetchone() == ("ok",)
        count = COLLECTIONS // 2 + len(written)
        assert opened.execute("select count(*) from collections").fetchone() == (count,)
    opened.close()
    assert written


def test_a_page_that_is_no_page_of_a_tree_is_left_alone(collections: Engine, tmp_path: Path) -> None:
    """An overflow page of a very large database may begin like one, but its pointers would lead elsewhere."""
    pages = (tmp_path / "likeness.sqlite").read_bytes()
    page_bytes = int.from_bytes(pages[16:18], "big")
    text = b"a text that fills a page, " * page_bytes
    head = struct.pack(">BHHHB", 13, 0, 2, 4_000, 0)
    for pointers, is_found in (((4_000, 4_050), True), ((4_050, 100), False)):
        strange = (head + struct.pack(">HH", *pointers) + text)[:page_bytes]
        (tmp_path / "other").write_bytes(pages + strange)
        assert (text[:100] in b"".join(read_unused_bytes(tmp_path / "other"))) == is_found


def test_another_file_that_has_taken_the_place_of_the_database_is_left_alone(
    collections: Engine, tmp_path: Path
) -> None:
    """Nobody has locked it: those who use it may write at the same moment."""
    file = tmp_path / "likeness.sqlite"
    with reading(collections) as session:  # a connection that is open already
        session.scalars(select(Collection.id)).all()
    shutil.copyfile(file, tmp_path / "other")
    os.replace(tmp_path / "other", file)
    with pytest.raises(Busy, match="replaced"):
        compact_deleted(collections)
    assert REMNANT in file.read_bytes()
