"""The service that the tests of failures kill and start again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import free_port
from tests.service_subprocess import ServiceSubprocess


@pytest.fixture
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServiceSubprocess]:
    """Start a service with the COLLECTION of the test's module, and stop it afterwards."""
    home = tmp_path / "home"
    home.mkdir()
    started = ServiceSubprocess(home, free_port())
    started.client.put(f"/v1/collections/{request.module.COLLECTION}")
    yield started
    started.stop()
