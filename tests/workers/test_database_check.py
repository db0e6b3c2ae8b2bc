"""A worker takes no job from a database that is not its own, however it has come to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from app.cli.server.preparation import create_first_key
from app.config import Settings
from app.db.session import reading, writing
from app.db.tables import Job
from app.queue import jobs
from app.queue.messages import Sweep
from app.resources import Resources, open_resources
from app.startup import CannotStart
from tests.databases import migrate
from workers import main
from workers import worker as worker_module
from workers.worker import Worker


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Those of a service that has been started once."""
    made = Settings(home=tmp_path / "home", default_recogniser="lbp")
    made.home.mkdir()
    migrate(made)
    create_first_key(made)
    return made


@pytest.fixture
def resources(settings: Settings) -> Iterator[Resources]:
    with open_resources(settings) as opened:
        yield opened


@pytest.fixture
def worker(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker for whom a job waits. It fails a test if it takes one, and stops when it waits for the first time."""
    with writing(resources.database) as session:
        jobs.enqueue(session, Sweep())
    return make_idle(Worker(resources, "default"), monkeypatch)


def make_idle(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Worker:
    monkeypatch.setattr(worker, "_handle", lambda *_: pytest.fail("it took a job"))
    monkeypatch.setattr(worker.stopping, "wait", lambda _: worker.stopping.set())
    return worker


def set_revision(resources: Resources, revision: str) -> None:
    with resources.database.begin() as connection:
        connection.execute(text("update alembic_version set version_num = :revision"), {"revision": revision})


def read_state(resources: Resources) -> str:
    with reading(resources.database) as session:
        return str(session.query(Job).one().state)


def test_the_database_of_another_home_that_was_away_at_the_start(
    resources: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs would be carried out in the wrong home: photos that were accepted would be stored there, and lost."""
    other = Settings(home=tmp_path / "other", database_url=f"sqlite:///{resources.settings.home / 'likeness.sqlite'}")
    with open_resources(other) as opened:
        worker = Worker(opened, "default")
        waits: list[float] = []
        monkeypatch.setattr(worker.stopping, "wait", waits.append)
        monkeypatch.setattr(worker, "step", lambda: pytest.fail("it looked for a job"))
        with monkeypatch.context() as away:
            away.setattr(worker_module, "require_newest_schema", _be_away)
            main._check_at_start(worker)
        with pytest.raises(CannotStart, match="belongs to another home"):
            worker.run()
        assert not waits


def _be_away(_: object) -> None:
    raise OperationalError("select 1", {}, ConnectionError("refused"))


def test_the_database_is_checked_again_after_it_was_away(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.check_database()
    checks: list[object] = []
    monkeypatch.setattr(worker_module, "require_newest_schema", checks.append)
    worker.check_database()
    assert not checks
    monkeypatch.setattr(worker, "step", lambda: _be_away(None))
    worker.run()
    worker.check_database()
    assert len(checks) == 1


def test_a_newer_version_that_migrates_the_database_meanwhile(worker: Worker) -> None:
    worker.check_database()
    set_revision(worker.resources, "9999")
    with pytest.raises(CannotStart, match="9999"):
        worker.run()
    assert read_state(worker.resources) == "queued"


def test_a_dump_that_is_put_back_meanwhile_is_waited_for(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    """A question that waited for the lock of a table which a transaction makes anew sees it empty."""
    worker.check_database()
    with worker.resources.database.begin() as connection:
        connection.execute(text("delete from alembic_version"))
    worker.run()
    assert "a dump is being put back" in caplog.text
    assert read_state(worker.resources) == "queued"


def test_a_database_that_is_still_to_be_migrated_is_waited_for(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    set_revision(worker.resources, "0001")
    main._check_at_start(worker)
    worker.run()
    assert "likeness migrate" in caplog.text
    assert read_state(worker.resources) == "queued"
