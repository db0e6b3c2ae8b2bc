"""Databases are closed with every connection, and a bulk insert has a larger cache of pages."""

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.config import Settings
from app.db.session import CACHE_KIB, LARGE_CACHE_KIB, close_database, large_cache, open_database, writing
from app.resources import Resources


def test_a_connection_in_use_is_closed_when_it_is_returned_to_a_closed_database(settings: Settings) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    database = open_database(settings.database)
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
    database = open_database(settings.database)
    if database.dialect.name == "sqlite":
        with database.connect() as first, database.connect() as second:
            last = first.connection.driver_connection
            assert second.connection.driver_connection is not last
        for _ in range(2):
            with database.connect() as again:
                assert again.connection.driver_connection is last
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
