"""Fixtures of several end-to-end tests."""

from collections.abc import Iterator

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
