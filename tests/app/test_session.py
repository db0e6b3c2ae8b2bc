"""Databases are closed with every connection, and a bulk insert has a larger cache of pages."""

import gc
import time
import warnings

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.config import Settings
from app.db.session import (
    CACHE_KIB,
    CONNECTION_SECONDS,
    LARGE_CACHE_KIB,
    close_database,
    large_cache,
    open_database,
    reading,
    stream_raw_rows,
    writing,
)
from app.db.tables import Face
from app.resources import Resources


def test_a_connection_in_use_is_closed_when_it_is_returned_to_a_closed_database(settings: Settings) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    database = open_database(settings.database, settings.home)
    closed = []
    with database.connect() as early:
        driver = early.connection.driver_connection
        close_database(database)
        with database.connect() as late:
            closed.append(late.connection.driver_connection)
        with database.connect() as again:
            assert again.scalar(text("select 1")) == 1, "a thread that is late can still finish its work"
    closed.append(driver)
    assert [is_closed(connection) for connection in closed] == [True, True]


def test_the_connection_that_was_returned_last_is_used_first(settings: Settings) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    database = open_database(settings.database, settings.home)
    if database.dialect.name == "sqlite":
        with database.connect() as first, database.connect() as second:
            last = first.connection.driver_connection
            assert second.connection.driver_connection is not last
        for _ in range(2):
            with database.connect() as again:
                assert again.connection.driver_connection is last
    close_database(database)


def test_connections_beyond_those_that_are_kept_are_closed_when_they_are_returned(settings: Settings) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    database = open_database(settings.database, settings.home, kept_connections=1)
    with database.connect() as first, database.connect() as second:
        drivers = [one.connection.driver_connection for one in (first, second)]
    assert [is_closed(driver) for driver in drivers] == [True, False], "the one that was returned first is kept"
    close_database(database)


def test_a_connection_to_sqlite_is_opened_anew_after_some_minutes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is used rarely would fill its caches for hours."""
    settings.home.mkdir(parents=True, exist_ok=True)
    database = open_database(settings.database, settings.home)
    if database.dialect.name == "sqlite":
        with database.connect() as connection:
            first = connection.connection.driver_connection
        with database.connect() as connection:
            assert connection.connection.driver_connection is first
        later = time.time() + CONNECTION_SECONDS + 1
        monkeypatch.setattr(time, "time", lambda: later)
        with database.connect() as connection:
            assert connection.connection.driver_connection is not first
            assert connection.scalar(text("PRAGMA secure_delete")) == 1, "it is prepared like the first"
        assert is_closed(first)
    close_database(database)


def is_closed(connection: object) -> bool:
    try:
        connection.execute("select 1")  # type: ignore[attr-defined]
    except Exception as error:
        return "closed" in str(error)
    return False


def test_the_large_cache_ends_with_its_block(resources: Resources) -> None:
    def read_cache(session: Session) -> int | None:
        is_sqlite = resources.database.dialect.name == "sqlite"
        return session.scalar(text("PRAGMA cache_size")) if is_sqlite else None

    with writing(resources.database) as session:
        before = read_cache(session)
        with large_cache(session):
            assert read_cache(session) == (None if before is None else -LARGE_CACHE_KIB)
        assert read_cache(session) == before
    assert before in (None, -CACHE_KIB)


@pytest.mark.parametrize("is_halfway", [False, True])
def test_a_statement_that_loses_its_connection_leaves_no_cursor_open(resources: Resources, is_halfway: bool) -> None:
    if resources.database.dialect.name == "sqlite":
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        with pytest.raises(DBAPIError), reading(resources.database) as session:
            read_beside_a_lost_connection(session, resources, is_halfway)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def read_beside_a_lost_connection(session: Session, resources: Resources, is_halfway: bool) -> None:
    statement = select(text("n from generate_series(1, 2000) n")) if is_halfway else select(Face.pk)
    rows = stream_raw_rows(session, statement)
    if is_halfway:
        next(rows)
    process = session.scalar(text("select pg_backend_pid()"))
    with resources.database.connect() as other:
        other.execute(text("select pg_terminate_backend(:process, 5000)"), {"process": process})
    next(rows)
