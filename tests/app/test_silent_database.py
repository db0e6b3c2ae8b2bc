"""A server of PostgreSQL that vanishes closes no connection. Nobody waits for it for long."""

import socket
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.config import Settings
from app.db.session import CONNECTION_LIMITS, close_database, open_database, reading

MAX_SECONDS = 30.0


@pytest.fixture
def silent_server() -> Iterator[int]:
    """The port of a server that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.timeout(60)
def test_a_server_that_answers_nothing_is_not_waited_for(silent_server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONNECTION_LIMITS, "connect_timeout", 2)  # libpq's least
    settings = Settings(database_url=f"postgresql://likeness@127.0.0.1:{silent_server}/likeness")
    database = open_database(settings.database, settings.home)
    started = time.monotonic()
    with pytest.raises(OperationalError), reading(database) as session:
        session.execute(text("select 1"))
    assert time.monotonic() - started < MAX_SECONDS


@pytest.mark.parametrize(("query", "seconds"), [("", "5"), ("&connect_timeout=9", "9")])
def test_the_address_may_state_other_limits(postgres: str, query: str, seconds: str) -> None:
    database = open_database(Settings(database_url=postgres + query).database, None)
    with database.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        stated = driver.info.get_parameters()
    close_database(database)
    assert (stated["connect_timeout"], stated["tcp_user_timeout"]) == (seconds, "10000")
