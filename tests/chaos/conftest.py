"""The services that the tests of failures kill and start again."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.workload import COLLECTION
from tests.conftest import create_database
from tests.raw_http import find_free_port
from tests.service_subprocess import ServiceSubprocess


@pytest.fixture
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServiceSubprocess]:
    """Start a service with a collection, which the test's module may name, and stop it afterwards."""
    yield from _run_service(tmp_path, getattr(request.module, "COLLECTION", COLLECTION))


@pytest.fixture(params=["sqlite", "postgresql"])
def service_of_each_database(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServiceSubprocess]:
    """Like `service`, on SQLite and on PostgreSQL with Redis, which are not killed."""
    url = next(database := create_database(request))
    addresses = {"database_url": url} if url else {}
    if url and shutil.which("redis-server"):
        addresses["redis_url"] = request.getfixturevalue("redis_url")
    yield from _run_service(tmp_path, COLLECTION, **addresses)
    next(database, None)


def _run_service(folder: Path, collection: str, **addresses: str) -> Iterator[ServiceSubprocess]:
    home = folder / "home"
    home.mkdir()
    started = ServiceSubprocess(home, find_free_port(), **addresses)
    started.client.put(f"/v1/collections/{collection}").raise_for_status()
    yield started
    started.stop()
