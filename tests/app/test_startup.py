"""What keeps a process from starting is said in a sentence, with exit code 1 and without a traceback."""

import asyncio
import errno
import io
import os
import re
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing, redirect_stderr
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text, update
from typer.testing import CliRunner

from app.cli.main import app
from app.cli.server.preparation import create_first_key
from app.config import Settings
from app.db.schema import check_schema
from app.db.session import writing
from app.db.tables import AuditHead
from app.main import create_app
from app.resources import open_resources
from app.startup import CannotStart, exit_with_reason, explain_start_error
from app.storage.audit_log.home_check import check_home_of_database
from ml.detectors import hog
from tests.databases import migrate, migrated_file
from workers import main as worker_main

TOOLS = (["audit", "verify"], ["erase", "compact"], ["erase", "verify", "--text", "somebody"], ["models", "sign"])
COMMANDS = (["serve", "--no-workers"], ["migrate"], ["keys", "create"], ["work"])
NEW_HOME: tuple[list[str], ...] = (["serve", "--no-workers"], ["migrate", "--new"], ["keys", "create", "--new"])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a service with an empty database."""
    path = tmp_path / "home"
    path.mkdir()
    migrate(Settings(home=path))
    return path


def run(command: list[str], monkeypatch: pytest.MonkeyPatch, **settings: str) -> tuple[int, str]:
    """Run a command that cannot start; "work" is a worker process. Returns its exit code and what it wrote."""
    for name in [name for name in os.environ if name.startswith("LIKENESS_")]:
        monkeypatch.delenv(name)
    for name, value in {"DEFAULT_RECOGNISER": "lbp", **settings}.items():
        monkeypatch.setenv(f"LIKENESS_{name}", value)
    if command != ["work"]:
        result = CliRunner().invoke(app, command, env={"NO_COLOR": "1", "COLUMNS": "200"})
        assert isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stderr
    monkeypatch.setattr("sys.argv", ["workers"])
    written = io.StringIO()
    with pytest.raises(SystemExit) as ended, redirect_stderr(written):
        worker_main.main()
    return int(str(ended.value.code)), written.getvalue()


def check_sentence(ended: tuple[int, str], words: str) -> None:
    code, output = ended
    assert code == 1, output
    assert re.match(r"likeness cannot start: ", output), output
    assert words in output
    assert output.count("\n") <= 1
    assert "Traceback" not in output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_file_that_is_no_database(home: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "likeness.sqlite").write_bytes(b"not a database at all, but long enough to have a header" * 40)
    check_sentence(run(command, monkeypatch, HOME=str(home)), "likeness.sqlite is damaged")


@pytest.mark.parametrize("command", [["migrate"], ["work"]], ids=" ".join)
def test_a_truncated_database(home: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "likeness.sqlite"
    path.write_bytes(path.read_bytes()[:5000])
    check_sentence(run(command, monkeypatch, HOME=str(home)), "is damaged. Restore it from a backup")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_newer_schema(home: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(home / "likeness.sqlite")) as database:
        database.execute("update alembic_version set version_num = '9999'")
        database.commit()
    ended = run(command, monkeypatch, HOME=str(home))
    check_sentence(ended, "the schema 9999, which a newer version of Likeness made")


@pytest.mark.parametrize("command", NEW_HOME, ids=" ".join)
def test_a_home_below_a_file(tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    check_sentence(run(command, monkeypatch, HOME=str(tmp_path / "file" / "home")), "is not a folder")


@pytest.mark.parametrize("command", [*NEW_HOME, ["work"]], ids=" ".join)
@pytest.mark.parametrize(
    ("code", "words"), [(errno.EACCES, "cannot be written"), (errno.EROFS, "cannot be"), (errno.ENOSPC, "is full")]
)
def test_a_home_that_cannot_be_written(
    tmp_path: Path, command: list[str], code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def refuse(path: Path, *arguments: object, **options: object) -> None:
        if path.is_relative_to(tmp_path / "home"):
            raise OSError(code, os.strerror(code), str(path))
        make(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", refuse)
    ended = run(command, monkeypatch, HOME=str(tmp_path / "home"))
    check_sentence(ended, words)
    assert str(tmp_path / "home") in ended[1]


@pytest.mark.parametrize("command", [*COMMANDS, *TOOLS], ids=" ".join)
@pytest.mark.parametrize(
    ("name", "value"),
    [("DATABASE_URL", "postgres://host/name"), ("REDIS_URL", "http://host"), ("WORKERS", "many"), ("WORKER", "1")],
)
def test_settings_that_are_not_valid(
    home: Path, command: list[str], name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run(command, monkeypatch, **{"HOME": str(home), name: value})
    check_sentence(ended, f"the settings are not valid: LIKENESS_{name}: ")


@pytest.mark.parametrize("command", [*COMMANDS[:3], *TOOLS], ids=" ".join)
def test_a_database_server_that_does_not_answer(
    home: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://ann:secret@127.0.0.1:1/likeness"
    ended = run(command, monkeypatch, HOME=str(home), DATABASE_URL=url)
    check_sentence(ended, "Check LIKENESS_DATABASE_URL, and that the server runs")
    assert "secret" not in ended[1]


def test_an_address_that_sqlalchemy_cannot_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(["migrate"], monkeypatch, HOME=str(home), DATABASE_URL="postgresql://host:port/name")
    check_sentence(ended, "LIKENESS_DATABASE_URL")


def test_a_busy_port(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        ended = run(["serve", "--no-workers", "--port", port], monkeypatch, HOME=str(home))
    check_sentence(ended, f"port {port}: Address already in use")
    assert "--port" in ended[1]


def test_a_detector_that_is_not_installed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run(["serve", "--no-workers", "--port", "0"], monkeypatch, HOME=str(home), DETECTOR="yunet")
    check_sentence(ended, "yunet")


@pytest.mark.parametrize("command", [["serve", "--no-workers"], ["migrate"]], ids=" ".join)
@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")], ids=["missing", "empty"])
def test_photos_without_a_database_are_not_swept_away(
    home: Path, command: list[str], lose: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "blobs" / "c-staff").mkdir(parents=True)
    lose(home / "likeness.sqlite")
    if command == ["migrate"] and not (home / "likeness.sqlite").exists():
        assert run(command, monkeypatch, HOME=str(home))[0] == 2
        return
    ended = run(command, monkeypatch, HOME=str(home))
    check_sentence(ended, "holds photos, but the database")
    assert not (home / "likeness.sqlite").exists() or (home / "likeness.sqlite").stat().st_size == 0


def test_an_audit_folder_that_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(home / "audit" / "1.lock"))

    monkeypatch.setattr("app.storage.audit_log.spool.FileLock.acquire", refuse)
    check_sentence(run(["serve", "--no-workers", "--port", "0"], monkeypatch, HOME=str(home)), "cannot be written")


@pytest.mark.parametrize("command", COMMANDS[:1] + COMMANDS[3:], ids=" ".join)
def test_a_missing_table(home: Path, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(home / "likeness.sqlite")) as database:
        database.execute("drop table labels")
        database.commit()
    check_sentence(run(command, monkeypatch, HOME=str(home)), "the database lacks the table labels: it is damaged")


def test_a_worker_waits_for_a_database_that_does_not_answer(home: Path) -> None:
    database = create_engine("postgresql+psycopg://ann@127.0.0.1:1/likeness")
    resources = type("Opened", (), {"database": database})()
    worker_main._check_at_start(worker_main.Worker(resources, "default"))


def test_the_schema_of_this_version_is_known(tmp_path: Path) -> None:
    shutil.copyfile(migrated_file(), tmp_path / "copy.sqlite")
    database = create_engine(f"sqlite:///{tmp_path / 'copy.sqlite'}")
    check_schema(database)
    with database.begin() as connection:
        connection.execute(text("update alembic_version set version_num = '0001'"))
    check_schema(database)
    with database.begin() as connection:
        connection.execute(text("update alembic_version set version_num = '9999'"))
    with pytest.raises(CannotStart, match="9999"):
        check_schema(database)


def test_an_error_that_nothing_explains_passes_through() -> None:
    assert explain_start_error(KeyError("a fault of the code")) is None
    with pytest.raises(KeyError), exit_with_reason():
        raise KeyError("a fault of the code")


def test_the_workers_start_when_the_application_can_answer(home: Path) -> None:
    calls: list[str] = []
    application = create_app(Settings(home=home, default_recogniser="lbp"), lambda _: calls.append("workers"))

    async def start_and_stop() -> None:
        async with application.router.lifespan_context(application) as state:
            calls.append("answers")
            assert state["engine"].resources.settings.home == home

    assert calls == []
    asyncio.run(start_and_stop())
    assert calls == ["workers", "answers"]


@pytest.mark.parametrize("command", [["serve", "--no-workers"], ["keys", "create"], ["snapshot", "copy"], ["work"]])
def test_the_database_of_another_home(
    home: Path, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its photos would be swept away, and the other's jobs taken, by a home that has the database of another."""
    monkeypatch.chdir(tmp_path)
    create_first_key(Settings(home=home))
    other = tmp_path / "other"
    (other / "blobs" / "c-staff").mkdir(parents=True)
    url = f"sqlite:///{home / 'likeness.sqlite'}"
    ended = run(command, monkeypatch, HOME=str(other), DATABASE_URL=url)
    check_sentence(ended, "belongs to another home")
    assert CliRunner().invoke(app, ["models", "sign"]).exit_code == 0  # whose key is lost may bind the two

    with open_resources(Settings(home=other, database_url=url)) as resources:
        check_home_of_database(resources.database, resources.audit_chain)


def test_an_altered_head_is_not_another_home(home: Path) -> None:
    create_first_key(settings := Settings(home=home))
    with open_resources(settings) as resources:
        with writing(resources.database) as session:
            session.execute(update(AuditHead).values(signature=""))
        check_home_of_database(resources.database, resources.audit_chain)


def test_the_first_photo_need_not_wait_for_the_detector(home: Path) -> None:
    hog._load_detector.cache_clear()
    application = create_app(Settings(home=home, default_recogniser="lbp"))

    async def start_and_stop() -> None:
        async with application.router.lifespan_context(application):
            assert hog._load_detector.cache_info().currsize == 1

    asyncio.run(start_and_stop())
