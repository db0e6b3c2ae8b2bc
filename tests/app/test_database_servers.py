"""A server of PostgreSQL that a failover left behind gets no connection; a stand-in says which timeline it has."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from app.config import Settings
from app.db.failures import describe_failure
from app.db.migrate import upgrade_database
from app.db.servers import connections, history
from app.db.servers.connections import list_hosts
from app.db.servers.history import SERVERS_FILE, ServerHistory, ServerTimeline
from app.db.session import close_database, is_temporary, open_database, reading
from app.startup import explain_start_error
from tests.databases import address, administer, execute

Open = Callable[[], Engine]


@pytest.fixture
def timelines(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """The timeline that a server says it has, by its host; "": of any other host. None: it does not say."""
    said: dict[str, int | None] = {"": 1}

    def read_server(_: object, connection: psycopg.Connection[Any]) -> ServerTimeline | None:
        timeline = said.get(connection.info.host, said[""])
        return None if timeline is None else ServerTimeline("7001", timeline)

    monkeypatch.setattr(connections, "read_server", read_server)
    return said


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def open_server(postgres: str, home: Path) -> Iterator[Open]:
    """Opens the private server as a process of the home does."""
    opened = list[Engine]()

    def open_anew() -> Engine:
        opened.append(open_database(Settings(database_url=postgres).database, home))
        return opened[-1]

    yield open_anew
    for database in opened:
        close_database(database)


def ask(database: Engine) -> int | None:
    with reading(database) as session:
        return session.scalar(text("select 1"))


def read_file(home: Path) -> dict[str, int]:
    timelines: dict[str, int] = json.loads((home / SERVERS_FILE).read_text())["timelines"]
    return timelines


def test_a_real_server_says_its_identifier_and_its_timeline(open_server: Open, home: Path) -> None:
    with open_server().connect() as connection:
        identifier = connection.scalar(text("select system_identifier::text from pg_control_system()"))
        assert not connection.connection.driver_connection.autocommit  # type: ignore[union-attr]
    assert read_file(home) == {identifier: 1}


def test_a_new_connection_has_no_transaction(open_server: Open) -> None:
    pooled = open_server().raw_connection()
    driver = pooled.driver_connection
    assert isinstance(driver, psycopg.Connection)
    assert driver.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    pooled.close()


def test_a_server_with_a_lower_timeline_is_refused(
    open_server: Open, home: Path, timelines: dict[str, int | None]
) -> None:
    for timeline in (1, 2):
        timelines[""] = timeline
        ask(open_server())
        assert read_file(home) == {"7001": timeline}
    timelines[""] = 1
    with pytest.raises(OperationalError) as refused:
        ask(open_server())
    sentence = "the database was left behind by a failover: its server has the timeline 1, after 2 was seen. Stop"
    assert is_temporary(refused.value)
    assert sentence in describe_failure(refused.value).detail
    reason = explain_start_error(refused.value, Settings(database_url="postgresql://db.example/likeness"))
    assert reason is not None
    assert "db.example/likeness was left behind" in reason
    assert SERVERS_FILE in reason
    (home / SERVERS_FILE).unlink()
    assert ask(open_server()) == 1, "an operator accepts the server by deleting the file"


def test_another_server_is_accepted(open_server: Open, home: Path, timelines: dict[str, int | None]) -> None:
    (home / SERVERS_FILE).write_text('{"6999": 7}')
    assert ask(open_server()) == 1
    assert read_file(home) == {"6999": 7, "7001": 1}


def test_a_server_that_does_not_say_is_accepted(
    open_server: Open, home: Path, timelines: dict[str, int | None]
) -> None:
    timelines[""] = None
    assert [ask(open_server()) for _ in range(2)] == [1, 1]
    assert not (home / SERVERS_FILE).exists()


def test_a_user_who_may_not_ask_is_let_in(postgres: str, administration: Engine, home: Path) -> None:
    name = f"t{uuid4().hex}"
    execute(administration, f"create database {name}")
    execute(administration, f"create role {name} login")
    with administer(address(postgres, name)) as database:
        execute(database, "revoke execute on function pg_control_system() from public")
    url = address(postgres, name).replace("//postgres:", f"//{name}:")
    database = open_database(Settings(database_url=url).database, home)
    assert ask(database) == 1
    assert not (home / SERVERS_FILE).exists()
    close_database(database)
    execute(administration, f"drop database {name} with (force)")
    execute(administration, f"drop role {name}")


@pytest.mark.parametrize(
    "content",
    ["", "[1]", '{"7001": "2"}', '{"7001": 2', "[" * 100_000, '{"timelines": {"7001": 2}, "tokens": {"7001": 2}}'],
)
def test_a_damaged_file_is_as_none(
    open_server: Open, home: Path, timelines: dict[str, int | None], content: str
) -> None:
    (home / SERVERS_FILE).write_text(content)
    assert ask(open_server()) == 1
    assert read_file(home) == {"7001": 1}


def test_nothing_is_kept_where_there_is_no_home(
    postgres: str, tmp_path: Path, timelines: dict[str, int | None]
) -> None:
    database = open_database(Settings(database_url=postgres).database, tmp_path / "none")
    assert ask(database) == 1
    close_database(database)
    assert not (tmp_path / "none").exists()


@pytest.fixture
def migrated(postgres: str, administration: Engine) -> Iterator[str]:
    """The address of a database of its own, with the tables of this version."""
    name = f"t{uuid4().hex}"
    execute(administration, f"create database {name}")
    url = address(postgres, name)
    upgrade_database(url, None)
    yield url
    execute(administration, f"drop database {name} with (force)")


def ask_at(url: str, home: Path) -> int | None:
    database = open_database(Settings(database_url=url).database, home)
    try:
        return ask(database)
    finally:
        close_database(database)


def read_tokens(url: str) -> set[str]:
    with administer(url) as database, database.connect() as connection:
        return set(connection.scalars(text("select token from server_tokens")))


def test_each_home_leaves_one_token(migrated: str, tmp_path: Path) -> None:
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
    for home in homes * 2:
        assert ask_at(migrated, home) == 1
    stored = [json.loads((home / SERVERS_FILE).read_text())["tokens"] for home in homes]
    assert {token for tokens in stored for token in tokens.values()} == read_tokens(migrated)
    assert len(read_tokens(migrated)) == 2


def test_a_server_that_lacks_the_token_is_refused(migrated: str, home: Path) -> None:
    """So is the other one of two that were promoted from one timeline."""
    assert ask_at(migrated, home) == 1
    with administer(migrated) as database:
        execute(database, "delete from server_tokens")
    with pytest.raises(
        OperationalError, match="has the timeline 1, as another one that is in use, and lacks"
    ) as refused:
        ask_at(migrated, home)
    assert is_temporary(refused.value)
    (home / SERVERS_FILE).unlink()
    assert ask_at(migrated, home) == 1, "an operator accepts the server by deleting the file"


def test_a_database_that_is_made_anew_is_accepted(migrated: str, administration: Engine, home: Path) -> None:
    assert ask_at(migrated, home) == 1
    name = migrated.partition("?")[0].rpartition("/")[2]
    execute(administration, f"drop database {name} with (force)")
    execute(administration, f"create database {name}")
    assert ask_at(migrated, home) == 1, "before it is migrated"
    upgrade_database(migrated, None)
    assert ask_at(migrated, home) == 1
    assert len(read_tokens(migrated)) == 1


def test_a_database_that_takes_no_token_is_accepted(
    migrated: str, administration: Engine, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    name = migrated.partition("?")[0].rpartition("/")[2]
    execute(administration, f"alter database {name} set default_transaction_read_only = on")
    assert ask_at(migrated, home) == 1
    assert "database.token_not_left" in caplog.text
    execute(administration, f"alter database {name} reset default_transaction_read_only")
    assert read_tokens(migrated) == set()


def test_a_home_that_cannot_be_written_keeps_nobody_out(
    open_server: Open, home: Path, timelines: dict[str, int | None], caplog: pytest.LogCaptureFixture
) -> None:
    (home / SERVERS_FILE).mkdir()
    timelines[""] = 2
    database = open_server()
    assert ask(database) == 1
    assert "database.server_not_kept" in caplog.text
    timelines[""] = 1
    database.dispose()
    with pytest.raises(OperationalError):
        ask(database)


def test_what_two_processes_have_seen_is_merged(home: Path) -> None:
    one, other = ServerHistory(home), ServerHistory(home)
    assert one.find_newest(ServerTimeline("7001", 3)) == 3
    assert other.find_newest(ServerTimeline("7002", 1)) == 1
    assert one.find_newest(ServerTimeline("7002", 2)) == 2
    assert other.find_newest(ServerTimeline("7001", 2)) == 3
    assert read_file(home) == {"7001": 3, "7002": 2}


def test_a_process_that_waits_to_write_adds_to_what_another_has_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def let_another_write(*_: object, **__: object) -> Iterator[None]:
        (home / SERVERS_FILE).write_text('{"timelines": {"7001": 3, "7002": 1}, "tokens": {}}')
        yield

    monkeypatch.setattr(history, "FileLock", let_another_write)
    assert ServerHistory(home).find_newest(ServerTimeline("7001", 2)) == 3
    assert ServerHistory(home).find_newest(ServerTimeline("7003", 1)) == 1
    assert read_file(home) == {"7001": 3, "7002": 1, "7003": 1}


def test_a_connection_to_a_server_that_was_left_behind_is_used_no_more(
    open_server: Open, timelines: dict[str, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "CHECK_SECONDS", 0.2)
    database = open_server()
    ask(database)
    timelines[""] = 2
    ask(open_server())
    time.sleep(0.2)
    with database.connect() as connection:
        assert connection.info["server"] == ServerTimeline("7001", 2)
    timelines[""] = 3
    ask(open_server())
    timelines[""] = 2
    time.sleep(0.2)
    with pytest.raises(OperationalError, match="left behind"):
        ask(database)
    timelines[""] = 3
    assert ask(database) == 1, "it goes on with a server that was not"


def test_the_other_hosts_of_an_address_are_tried(
    postgres: str, home: Path, timelines: dict[str, int | None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(postgres.partition("?host=")[2])
    links = [home / name for name in ("a", "b", "c")]
    for link in (links[0], links[2]):  # nothing listens at the second host
        link.symlink_to(folder)
    url = postgres.replace(str(folder), str(links[0])) + "".join(f"&host={link}" for link in links[1:])
    timelines |= {str(links[0]): 1, str(links[2]): 2}
    database = open_database(Settings(database_url=url).database, home)
    (home / SERVERS_FILE).write_text('{"7001": 2}')
    with database.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        assert driver.info.host == str(links[2])
    assert f"server={links[0]}:5432: the database was left behind" in caplog.text
    close_database(database)


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ({}, []),
        ({"host": "a", "port": 5432}, []),
        ({"host": "a,b"}, [{"host": "a"}, {"host": "b"}]),
        ({"host": "a,b", "port": "1,2"}, [{"host": "a", "port": "1"}, {"host": "b", "port": "2"}]),
        ({"host": "a,b", "port": 1}, [{"host": "a", "port": "1"}, {"host": "b", "port": "1"}]),
    ],
)
def test_hosts_are_listed_with_their_ports(options: dict[str, Any], hosts: list[dict[str, str]]) -> None:
    assert list_hosts(options) == hosts
