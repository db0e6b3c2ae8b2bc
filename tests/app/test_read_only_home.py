"""A home that cannot be written: searches go on, writes are refused with 503, and the service is not ready."""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from sqlalchemy import event

from app.access import keys
from app.config import Settings
from app.db.session import writing
from app.errors import Busy
from app.resources import open_resources
from app.storage.home.watch import HomeWatch
from app.storage.request_timestamp import RequestTimestamp
from tests.databases import migrate
from tests.service import serve_api


def refuse(*arguments: object, **options: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(home=tmp_path / "home", poll_seconds=0.05, default_recogniser="lbp")
    made.home.mkdir()
    migrate(made)
    return made


@pytest.fixture
def client(settings: Settings) -> Iterator[httpx.Client]:
    with open_resources(settings) as resources, writing(resources.database) as session:
        header = {"x-api-key": keys.create_key(session, "admin", "test")[1]}
    with serve_api(settings) as url, httpx.Client(base_url=url, headers=header, timeout=30) as opened:
        yield opened


def make_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave as a home does whose file system was mounted again, for reading only."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK) and access(path, mode))
    monkeypatch.setattr("app.storage.atomic_write._write_part", refuse)
    monkeypatch.setattr("app.deps.uploads.upload_files.UploadWriter._write_rest", refuse)
    monkeypatch.setattr(Path, "touch", refuse)
    monkeypatch.setattr("app.storage.audit_log.spool.os", SimpleNamespace(**{**vars(os), "open": refuse}))


def test_writes_are_refused_and_searches_go_on(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert client.put("/v1/collections/staff").status_code == 201
    with monkeypatch.context() as read_only:
        make_read_only(read_only)
        headers = {"Content-Type": "application/octet-stream"}
        answer = client.post("/v1/collections/staff:import", content=b"archive", headers=headers)
        assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "Throttling", "1")
        assert "read-only" in answer.json()["detail"]
        ready = client.get("/readyz")
        assert (ready.status_code, ready.headers["Retry-After"]) == (503, "1")
        assert "read-only" in ready.text
        found = client.post("/v1/collections/staff/search:by-embedding", json={"vector": [0.0]})
        assert found.status_code == 422, "the index was asked, which is of another length"
    assert "Traceback" not in caplog.text
    deadline = time.monotonic() + 10
    while client.get("/readyz").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_read_only_database_is_named(settings: Settings) -> None:
    with open_resources(settings) as resources:
        event.listen(resources.database, "begin", lambda connection: connection.exec_driver_sql("select 1"))
        event.listen(resources.database, "connect", lambda driver, _: driver.execute("pragma query_only=on"))
        with pytest.raises(Busy, match="cannot be written"), writing(resources.database) as session:
            keys.create_key(session, "admin", "test")


def test_a_request_is_answered_if_its_time_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Path, "touch", refuse)
    RequestTimestamp(tmp_path).stamp()
    assert "last_request.not_stamped" in caplog.text


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_failed_write_is_explained_by_the_home(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, error = HomeWatch([tmp_path]), OSError(code, os.strerror(code))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert isinstance(watch.explain(error), Busy)
    assert not isinstance(watch.explain(OSError(errno.EIO, "")), Busy)


def test_a_folder_that_may_not_be_read_is_no_fault_of_the_home(tmp_path: Path) -> None:
    error = OSError(errno.EACCES, os.strerror(errno.EACCES))
    assert HomeWatch([tmp_path]).explain(error) is error
