"""What deleted rows have left in a database is removed."""

import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.config import Settings
from app.db.compaction import compact_deleted, rewrite_database
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
