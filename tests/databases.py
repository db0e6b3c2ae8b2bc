"""New databases for tests: copies of one that the migrations made once in this process."""

import atexit
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from sqlalchemy import Delete, Engine, delete, select, text

from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import open_database, writing
from app.db.tables import Collection, Erasure, Evaluation, Job, KeptSnapshot, ModelRecord, StoredResponse, Training
from app.db.visibility import ALL_ROWS
from app.errors import Busy
from app.queue import jobs
from app.queue.messages import Sweep
from app.resources import Resources
from app.storage.model_cache import LBP_MODEL


def migrate(settings: Settings) -> None:
    """Migrate the database of a test to the newest schema. The home must exist.

    A new SQLite database is a copy of a migrated one. A database on PostgreSQL was copied when it was created.
    """
    if settings.database_url:
        return
    path = settings.home / "likeness.sqlite"
    if path.exists():
        upgrade_database(settings.database, settings.home)
    else:
        shutil.copyfile(migrated_file(), path)


@cache
def migrated_file() -> Path:
    """An empty SQLite database of the newest schema."""
    home = Path(tempfile.mkdtemp(prefix="likeness-schema-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    upgrade_database(Settings(home=home).database, None)
    path = home / "likeness.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma wal_checkpoint(truncate)")
    return path


@contextmanager
def administer(server: str) -> Iterator[Engine]:
    """Open the server itself, to create databases and to drop them, each with a statement of its own transaction."""
    database = open_database(Settings(database_url=server).database, None)
    try:
        yield database.execution_options(isolation_level="AUTOCOMMIT")
    finally:
        database.dispose()


def execute(administration: Engine, statement: str) -> None:
    with administration.connect() as connection:
        connection.execute(text(statement))


@cache
def migrated_database(server: str) -> str:
    """The name of an empty database of the newest schema on this PostgreSQL server, to copy others from."""
    name = "migrated"
    with administer(server) as administration:
        execute(administration, f"create database {name}")
    upgrade_database(Settings(database_url=address(server, name)).database, None)
    return name


def address(server: str, name: str) -> str:
    return server.replace("/postgres?", f"/{name}?")


def delete_collections(database: Engine, seconds: float = 60) -> None:
    """Delete all collections with their rows, while a service that follows them may run."""
    _delete(database, [delete(Collection)], seconds)


def remove_test_data(resources: Resources, seconds: float = 60) -> None:
    """Remove what a test has written, so that the next one finds the service as new. The service may run.

    Live jobs are cancelled, and those that run are waited for. Keys, tasks, the audit log and the folders of models
    stay, and so do sweeps: without the last one a worker would sweep again.
    """
    until = time.monotonic() + seconds
    while _cancel_jobs(resources):
        assert time.monotonic() < until, f"a cancelled job did not end within {seconds} s"
        time.sleep(0.03)
    tables = (Training, Evaluation, Erasure, KeptSnapshot, StoredResponse)
    statements = [delete(Collection), *map(delete, tables)]
    statements += [delete(Job).where(Job.kind != Sweep.kind), delete(ModelRecord).where(ModelRecord.id != LBP_MODEL)]
    _delete(resources.database, statements, seconds)
    resources.notifier.notify("changes")  # so that no index answers for a later collection of the same name
    for folder in resources.blobs.root.iterdir():
        shutil.rmtree(folder, ignore_errors=True)


def _cancel_jobs(resources: Resources) -> bool:
    """Cancel all live jobs; return whether a worker runs one still."""
    with writing(resources.database) as session:
        live = session.scalars(select(Job).where(Job.state.in_(jobs.LIVE_STATES)), execution_options=ALL_ROWS).all()
        for job in live:
            jobs.cancel(session, job)
        return any(job.state == "running" and job.lease_until for job in live)


def _delete(database: Engine, statements: list[Delete], seconds: float) -> None:
    """Execute the statements in one transaction.

    On PostgreSQL, a follower that writes its change at the same moment is a deadlock, which one of both loses.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            with writing(database) as session:
                for statement in statements:
                    session.execute(statement)
        except Busy:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def is_write_locked(resources: Resources) -> bool:
    """Whether nobody else can write to the database, which is SQLite, at this moment."""
    path = str(resources.database.url.database)
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
    return False
