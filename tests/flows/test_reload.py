"""A service whose processes die or are reloaded goes on answering."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import httpx
import pytest

from tests.raw_http import find_free_port
from tests.service_subprocess import ServiceSubprocess

PATH = "/v1/collections"
ROLES = ("supervisor", "api", "default", "training")
MIGRATIONS = Path(__file__).parents[2] / "migrations" / "versions"
MAX_SECONDS = 200.0
"""How long a start takes at most among many tests."""
PAUSE_SECONDS = 0.05
SHORT_PAUSE_SECONDS = 0.002
"""The time between two requests while processes replace each other. Always as short, it would take the cores from the
start of the new ones, for which the requests wait."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceSubprocess]:
    home = tmp_path / "home"
    home.mkdir()
    started = ServiceSubprocess(home, find_free_port())
    wait_for(lambda: len(started.list_processes("all")) == len(ROLES))
    wait_for(lambda: all(started.list_processes(role) for role in ROLES))
    yield started
    started.stop()


def list_pids(service: ServiceSubprocess, role: str) -> set[int]:
    return {process.pid for process in service.list_processes(role)}


def wait_for(condition: Callable[[], object], seconds: float = MAX_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def ask_once(service: ServiceSubprocess) -> int:
    """Return the status of the answer to a request over a connection of its own."""
    with closing(HTTPConnection("127.0.0.1", service.port, timeout=30)) as connection:
        connection.request("GET", PATH, headers=dict(service.client.headers))
        return connection.getresponse().status


@contextmanager
def ask_all_the_time(service: ServiceSubprocess, is_replaced: threading.Event, is_kept: bool) -> Iterator[Counter[str]]:
    """Send request after request, and count the answers by status and the failures by kind.

    is_replaced: set while a process that answers is being replaced, when the pauses are short
    is_kept: over one connection, which is opened again when it is closed between two requests
    """
    counts: Counter[str] = Counter()
    stopping = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=service.client.base_url, headers=service.client.headers, timeout=30) as client:
            while not stopping.is_set():
                is_replaced.wait(PAUSE_SECONDS)
                stopping.wait(SHORT_PAUSE_SECONDS)
                try:
                    counts[str(client.get(PATH).status_code if is_kept else ask_once(service))] += 1
                except (httpx.TransportError, OSError, HTTPException) as error:
                    counts[type(error).__name__] += 1

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield counts
    finally:
        stopping.set()
        thread.join()


def test_no_request_is_refused_while_the_service_is_reloaded(service: ServiceSubprocess) -> None:
    old, old_api = list_pids(service, "all"), list_pids(service, "api")
    assert service.process is not None
    is_replaced = threading.Event()
    with (
        ask_all_the_time(service, is_replaced, is_kept=False) as new_counts,
        ask_all_the_time(service, is_replaced, is_kept=True) as kept_counts,
    ):
        service.process.send_signal(signal.SIGHUP)
        wait_for(lambda: list_pids(service, "api") - old_api)  # all is imported, and it is not ready yet
        is_replaced.set()
        wait_for(lambda: not old_api & list_pids(service, "api"))
        time.sleep(0.5)
        is_replaced.clear()
        wait_for(lambda: old & list_pids(service, "all") == {service.process.pid})
        wait_for(lambda: len(list_pids(service, "all")) == len(old))
    assert service.process.poll() is None
    assert list(new_counts) == ["200"], new_counts
    assert list(kept_counts) == ["200"], kept_counts
    service.process.send_signal(signal.SIGHUP)  # once more, by the program that took over
    second = list_pids(service, "api")
    wait_for(lambda: not second & list_pids(service, "api"))
    service.wait_until_ready()


def test_a_reload_that_cannot_succeed_leaves_the_service_as_it_is(service: ServiceSubprocess) -> None:
    old = list_pids(service, "all")
    assert service.process is not None
    service.execute("update alembic_version set version_num = '0015'")
    service.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "reload.refused" in service.read_log_end())
    assert "the database must be migrated first" in service.read_log_end()
    assert list_pids(service, "all") == old
    assert service.client.get(PATH).status_code == 200
    newest = max(path.name[:4] for path in MIGRATIONS.glob("0*.py"))
    service.execute(f"update alembic_version set version_num = '{newest}'")


def test_a_killed_api_process_is_back_within_seconds(service: ServiceSubprocess) -> None:
    [first] = list_pids(service, "api")
    workers = list_pids(service, "default") | list_pids(service, "training")
    service.kill("api")
    [second] = list_pids(service, "api")
    assert second != first
    assert list_pids(service, "default") | list_pids(service, "training") == workers
