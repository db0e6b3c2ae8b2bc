"""Fixtures of several end-to-end tests."""

from collections.abc import Iterator

import pytest

from tests.flows.console import Page, open_browser
from tests.service import Service


@pytest.fixture(scope="module")
def page(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The console in a browser, signed in to the service of the module that uses it."""
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        opened = Page(browser, service)
        opened.enter()
        yield opened
