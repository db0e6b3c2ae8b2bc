"""`likeness serve` ends soon after SIGTERM while a client watches a job."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.access import keys
from app.config import Settings
from app.db.migrate import upgrade_database
from app.db.session import open_database, writing
from app.db.tables import Collection
from app.queue.jobs import enqueue
from app.queue.messages import ImportArchive
from tests.raw_http import find_free_port
from tests.service_subprocess import LIKENESS_COMMAND, ROOT


@pytest.fixture
def job(tmp_path: Path) -> tuple[str, str]:
    """The id of a queued job, and a key that may read it."""
    settings = Settings(home=tmp_path)
    upgrade_database(settings.database, settings.home)
    with writing(open_database(settings.database, settings.home)) as session:
        session.add(Collection(id="staff", change=0))
        waiting = enqueue(session, ImportArchive(collection="staff", path="/none"), delay=3600.0)
        return waiting.id, keys.create_key(session, "admin", "test")[1]


@pytest.fixture
def server(tmp_path: Path, job: tuple[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The API as an operator starts it, and its address."""
    port = find_free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LIKENESS_")}
    environment |= {"LIKENESS_HOME": str(tmp_path), "LIKENESS_DEFAULT_RECOGNISER": "lbp"}
    command = [*LIKENESS_COMMAND, "serve", "--no-workers", "--port", str(port)]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        yield process, f"http://127.0.0.1:{port}"
        process.kill()


def wait_until_listening(url: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/livez")
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the API did not start")


def test_an_open_event_stream_ends_with_the_server(
    server: tuple[subprocess.Popen[str], str], job: tuple[str, str]
) -> None:
    (process, url), (job_id, key) = server, job
    wait_until_listening(url)
    with httpx.stream("GET", f"{url}/v1/jobs/{job_id}/events", headers={"x-api-key": key}, timeout=30) as answer:
        lines = answer.iter_lines()  # the stream closes with its iterator
        assert next(lines).startswith("data: ")
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert process.returncode in (0, -signal.SIGTERM)
    assert "graceful shutdown exceeded" not in errors
