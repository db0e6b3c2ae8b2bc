"""Other users of the machine can read nothing that the service, its workers and its commands store."""

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.server.commands import migrate as migrate_command
from app.storage.private_files import create_home
from tests.gallery import draw_photo
from tests.raw_http import find_free_port
from tests.service_subprocess import ROOT, ServiceSubprocess

USUAL_UMASK = 0o022
MADE_BY_THE_TEST = ("log", "likeness.sqlite", "likeness.sqlite-wal", "likeness.sqlite-shm")


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """What most machines have: others may read."""
    before = os.umask(USUAL_UMASK)
    yield
    os.umask(before)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceSubprocess]:
    home = tmp_path / "home"
    home.mkdir()
    started = ServiceSubprocess(home, find_free_port())
    yield started
    started.stop()


def list_open(*roots: Path) -> list[str]:
    """List the files and folders that the group or others may read, write or enter."""
    paths = [path for root in roots for path in (root, *root.rglob("*"))]
    return [str(path) for path in paths if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_what_a_command_makes_is_closed_to_others(tmp_path: Path) -> None:
    home = tmp_path / "parent" / "home"
    env = {name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_")}
    command = [sys.executable, "-m", "app.cli", "keys", "create", "--new"]
    made = subprocess.run(
        command, cwd=ROOT, env=env | {"LIKENESS_HOME": str(home)}, capture_output=True, text=True, check=True
    )
    assert (home / "likeness.sqlite").is_file()
    assert list_open(home.parent) == []
    assert "chmod" not in made.stderr


def test_what_the_service_and_its_workers_make_is_closed_to_others(service: ServiceSubprocess) -> None:
    client = service.client
    client.put("/v1/collections/staff").raise_for_status()
    enrolled = client.post("/v1/collections/staff/faces", data={"aligned": "true"}, files={"file": draw_photo(0, 0)})
    assert enrolled.status_code == 201, enrolled.text
    started = client.post("/v1/snapshots", json={"collection": "staff"}).raise_for_status()
    assert service.wait_for_job(started.headers["Location"])["state"] == "succeeded"
    made = [path for path in service.home.iterdir() if path.name not in MADE_BY_THE_TEST]
    files = {path.relative_to(service.home).parts[0] for folder in made for path in folder.rglob("*") if path.is_file()}
    assert files >= {"blobs", "models", "snapshots"}
    assert list_open(*made) == []


def test_a_home_that_is_open_to_others_is_reported_and_not_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "a home"
    create_home(home)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert caplog.messages == []
    for mode in (0o710, 0o701, 0o755):
        home.chmod(mode)
        with caplog.at_level(logging.WARNING):
            create_home(home)
        assert f"chmod -R go= '{home}'" in caplog.messages[-1]
        assert stat.S_IMODE(home.stat().st_mode) == mode
        caplog.clear()


def test_a_migration_reports_a_home_that_is_open_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LIKENESS_HOME", str(tmp_path))
    monkeypatch.delenv("LIKENESS_DATABASE_URL", raising=False)
    tmp_path.chmod(0o750)
    migrate_command(new=True)
    assert f"chmod -R go= {tmp_path}" in caplog.text
