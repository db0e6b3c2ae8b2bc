"""A process of the API has as many threads for the scans of its indexes as it has cores of its own."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import config
from app.config import Settings
from app.main import create_app
from ml.indexes import scan_helpers
from tests.databases import migrate


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(config, "cpu_count", lambda: 4)
    yield
    scan_helpers().count = 0


@pytest.mark.parametrize(("processes", "helpers"), [(1, 3), (2, 1), (3, 0), (64, 0)])
def test_a_process_of_the_api_has_its_share_of_the_cores(
    four_cores: None, tmp_path: Path, processes: int, helpers: int
) -> None:
    settings = Settings(home=tmp_path, default_recogniser="lbp", api_processes=processes)
    migrate(settings)

    async def start() -> int:
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            return scan_helpers().count

    assert asyncio.run(start()) == helpers
