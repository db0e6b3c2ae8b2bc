"""A home that is moved, deleted or replaced while the service runs: nothing is answered with 2xx and then lost."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from app.access import keys
from app.cli.server.service import may_start_again
from app.config import Settings
from app.db.session import close_database, open_database, reading, writing
from app.db.tables import Collection
from app.errors import Busy
from app.resources import Resources, open_resources
from app.startup import CannotStart
from app.storage.home import watch
from app.storage.home.watch import HOME_MOVED, HomeWatch
from tests.databases import migrate
from tests.service import serve_api
from workers.worker import Worker


@pytest.fixture(autouse=True)
def no_pause_between_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "CHECK_SECONDS", 0.0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(home=tmp_path / "home", poll_seconds=0.05, workers=1, default_recogniser="lbp")
    made.home.mkdir()
    migrate(made)
    return made


@pytest.fixture
def resources(settings: Settings) -> Iterator[Resources]:
    with open_resources(settings) as opened:
        yield opened


def test_a_database_file_that_is_gone_is_not_made_anew(settings: Settings) -> None:
    database, file = open_database(settings.database, settings.home), settings.home / "likeness.sqlite"
    with reading(database) as session:
        session.execute(text("select 1"))
    moved = file.rename(settings.home / "moved.sqlite")
    with pytest.raises(Busy, match="moved, deleted or replaced"), reading(database) as session:
        session.execute(text("select 1"))
    database.dispose()  # a further connection is refused before SQLite makes an empty file
    with pytest.raises(Busy, match="nothing of this request was stored"), writing(database) as session:
        session.execute(text("select 1"))
    assert not file.exists()
    moved.rename(file)
    with reading(database) as session:
        assert session.scalar(text("select count(*) from collections")) == 0, "it is back"
    close_database(database)


def test_a_write_is_not_committed_to_a_file_that_is_gone(settings: Settings) -> None:
    database, file = open_database(settings.database, settings.home), settings.home / "likeness.sqlite"
    copy = shutil.copy(file, settings.home / "copy.sqlite")
    moved = settings.home / "moved.sqlite"

    def write_while_the_file_is_replaced() -> None:
        with writing(database) as session:
            session.add(Collection(id="staff"))
            session.flush()
            file.rename(moved)
            os.rename(copy, file)

    with pytest.raises(Busy, match="nothing of this request was stored"):
        write_while_the_file_is_replaced()
    os.rename(moved, file)
    with reading(database) as session:
        assert session.get(Collection, "staff") is None
    with writing(database) as session:
        session.add(Collection(id="staff"))
    close_database(database)


@pytest.mark.parametrize("replaced", [False, True], ids=["moved", "replaced"])
def test_requests_are_refused_until_the_home_is_back(settings: Settings, replaced: bool) -> None:
    away = settings.home.with_name("away")
    with open_resources(settings) as resources, writing(resources.database) as session:
        header = {"x-api-key": keys.create_key(session, "admin", "test")[1]}
    with serve_api(settings) as url, httpx.Client(base_url=url, headers=header, timeout=30) as client:
        assert client.put("/v1/collections/staff").status_code == 201
        settings.home.rename(away)
        if replaced:
            settings.home.mkdir()
        for answer in (client.put("/v1/collections/guests"), client.get("/v1/collections"), client.get("/readyz")):
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert HOME_MOVED in answer.text
        assert client.get("/livez").status_code == 200
        assert not settings.home.exists() or not list(settings.home.iterdir())
        if replaced:
            settings.home.rmdir()
        away.rename(settings.home)
        names = [collection["id"] for collection in client.get("/v1/collections").json()["collections"]]
        assert names == ["staff"]


@pytest.mark.parametrize("replaced", [False, True], ids=["away", "replaced"])
@pytest.mark.parametrize("name", ["blobs", "uploads", "audit", "snapshots"])
def test_requests_are_refused_while_a_folder_of_the_home_is_away(settings: Settings, name: str, replaced: bool) -> None:
    """A folder may be a mount of its own: what is written to the empty folder below is hidden once it is back."""
    folder, away = settings.home / name, settings.home / "away"
    with open_resources(settings) as resources:
        folder.rename(away)
        if replaced:
            folder.mkdir()
        with pytest.raises(Busy, match=HOME_MOVED):
            resources.home.check()
        error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        assert isinstance(resources.home.explain(error), Busy), "jobs are put back"
        if replaced:
            folder.rmdir()
        away.rename(folder)
        resources.home.check()


def test_a_service_goes_on_without_its_cache_of_indexes(resources: Resources) -> None:
    shutil.rmtree(resources.indexes)
    assert resources.home.find_fault() is None
    assert resources.home.find_write_fault() is None


def test_nothing_is_written_into_a_home_that_is_gone(resources: Resources) -> None:
    home = resources.settings.home
    home.rename(home.with_name("away"))
    with pytest.raises(OSError, match="home"):
        resources.blobs.put("staff", [("photos/00/00", b"photo")])
    with pytest.raises(Busy, match=HOME_MOVED):
        resources.home.check()
    assert not home.exists()
    home.with_name("away").rename(home)


def test_photos_are_not_stored_below_a_mount_that_has_ended(resources: Resources) -> None:
    blobs, away = resources.blobs, resources.settings.home / "away"
    blobs.root.rename(away)
    blobs.root.mkdir()
    with pytest.raises(Busy, match="nothing of this request was stored"):
        blobs.put("staff", [("photos/00/00", b"photo")])
    shutil.rmtree(blobs.root)
    away.rename(blobs.root)
    blobs.put("staff", [("photos/00/00", b"photo")])
    assert blobs.get("staff", "photos/00/00") == b"photo"


def test_a_worker_takes_no_job_while_the_home_is_gone(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    home, worker = resources.settings.home, Worker(resources, "default")
    home.rename(home.with_name("away"))
    monkeypatch.setattr(worker, "step", lambda: pytest.fail("it looked for a job"))
    monkeypatch.setattr(worker.stopping, "wait", lambda seconds: worker.stopping.set())
    worker.run()
    assert not home.exists()
    home.with_name("away").rename(home)


@pytest.mark.parametrize("lost", ["installation.key", "likeness.sqlite", "blobs"])
def test_a_worker_of_a_running_service_makes_no_new_home(resources: Resources, lost: str) -> None:
    (resources.settings.home / lost).rename(resources.settings.home / "away")
    with pytest.raises(CannotStart, match=lost), open_resources(resources.settings, is_running=True):
        pass
    assert not (resources.settings.home / lost).exists()


def test_processes_are_started_again_only_while_the_home_is_there(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.storage.home.watch.CHECK_SECONDS", 0.0)
    may_start, away = may_start_again(settings), settings.home.with_name("away")
    assert may_start()
    settings.home.rename(away)
    assert not may_start()
    away.rename(settings.home)
    assert may_start()


def test_a_home_that_cannot_be_written_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = HomeWatch([tmp_path])
    assert watch.find_write_fault() is None
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK))
    assert "read-only" in str(watch.find_write_fault())
