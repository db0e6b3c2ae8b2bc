"""New databases for tests: copies of one that the migrations made once in this process."""

import shutil
import sqlite3
import tempfile
import time
from contextlib import closing
from functools import cache
from pathlib import Path

from sqlalchemy import Engine, delete, text

from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import open_database, writing
from app.db.tables import Collection
from app.errors import Busy


def migrate(settings: Settings) -> None:
    """Migrate the database of a test to the newest schema. The home must exist.

    A new SQLite database is a copy of a migrated one. A database on PostgreSQL was copied when it was created.
    """
    if settings.database_url:
        return
    path = settings.home / "likeness.sqlite"
    if path.exists():
        upgrade_database(settings.database)
    else:
        shutil.copyfile(migrated_file(), path)


@cache
def migrated_file() -> Path:
    """An empty SQLite database of the newest schema."""
    home = Path(tempfile.mkdtemp(prefix="likeness-schema-"))
    upgrade_database(Settings(home=home).database)
    path = home / "likeness.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma wal_checkpoint(truncate)")
    return path


@cache
def migrated_database(server: str) -> str:
    """The name of an empty database of the newest schema on this PostgreSQL server, to copy others from."""
    name = "migrated"
    execute(server, f"create database {name}")
    upgrade_database(Settings(database_url=address(server, name)).database)
    return name


def address(server: str, name: str) -> str:
    return server.replace("/postgres?", f"/{name}?")


def execute(server: str, statement: str) -> None:
    """Run a statement outside of a transaction, as `create database` asks."""
    database = open_database(Settings(database_url=server).database)
    with database.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(statement))
    database.dispose()


def delete_collections(database: Engine, seconds: float = 60) -> None:
    """Delete all collections with their rows, while a service that follows them may run.

    On PostgreSQL, a follower that writes its change at the same moment is a deadlock, which one of both loses.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            with writing(database) as session:
                session.execute(delete(Collection))
        except Busy:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
