"""Drive the console in a real browser, against a real service."""

import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.gallery import draw_photo
from tests.service import Service

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,1400", "--disable-background-networking")
WAIT_SECONDS = 60
_IDLE: list[webdriver.Chrome] = []
"""The browsers that were lent and given back."""


@contextmanager
def borrow_browser() -> Iterator[webdriver.Chrome]:
    """Lend a browser that has stored nothing, and keep it for the next test.

    To start one takes a second and a half of processor time. `quit_browsers` ends them.
    """
    browser = _IDLE.pop() if _IDLE else _start_browser(Path(tempfile.mkdtemp(prefix="likeness-chromium-")))
    try:
        yield browser
    except BaseException:
        browser.quit()
        raise
    _forget(browser)
    _IDLE.append(browser)


def quit_browsers() -> None:
    while _IDLE:
        browser = _IDLE.pop()
        folder = Path(browser.capabilities["chrome"]["userDataDir"]).parent
        browser.quit()
        shutil.rmtree(folder, ignore_errors=True)


def _forget(browser: webdriver.Chrome) -> None:
    """Remove what pages have stored, close all tabs but one, and read the log to its end."""
    origin = browser.execute_script("sessionStorage.clear(); return location.origin")
    browser.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    browser.execute_cdp_cmd("Network.clearBrowserCache", {})
    browser.execute_cdp_cmd("Network.clearBrowserCookies", {})
    first, *others = browser.window_handles
    for tab in others:
        browser.switch_to.window(tab)
        browser.close()
    browser.switch_to.window(first)
    browser.get("about:blank")
    browser.get_log("browser")


@contextmanager
def open_browser(folder: Path, *flags: str) -> Iterator[webdriver.Chrome]:
    """Start a browser with further flags, and quit it."""
    started = _start_browser(folder, *flags)
    try:
        yield started
    finally:
        started.quit()


def _start_browser(folder: Path, *flags: str) -> webdriver.Chrome:
    """Start Chromium without a window. The test is skipped if it is not installed."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs chromium and chromedriver, which are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, *flags, f"--user-data-dir={folder / 'chromium'}"):
        options.add_argument(flag)
    try:
        return webdriver.Chrome(options, webdriver.ChromeService(driver))
    except WebDriverException:  # on a busy machine Chromium may not be there in the driver's time
        return webdriver.Chrome(options, webdriver.ChromeService(driver))


@dataclass(frozen=True)
class Page:
    """The console as a test uses it: clicks, input and the elements that are shown."""

    browser: webdriver.Chrome
    service: Service

    @property
    def key(self) -> str:
        return self.service.client.headers["Authorization"].removeprefix("Bearer ")

    def enter(self) -> None:
        """Open the page and sign in with the key."""
        self.browser.get(self.service.url)
        self.see("#key").send_keys(self.key)
        self.see("#enter").click()
        self.see("#make")

    def open(self, view: str) -> None:
        """Open a view by its address, such as `staff/search`, and wait until it has replaced the one before."""
        address = f"{self.service.url}/#/{view}"
        if self.browser.current_url == address:
            self.browser.refresh()
        else:
            self.browser.execute_script("document.querySelector('#view > *')?.setAttribute('data-old', '')")
            self.browser.get(address)
        self.wait(lambda: self.all("#view > *") and not self.all("#view > [data-old]"))

    def wait(self, condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        """Wait until the condition is true and return its value. Errors of elements that vanish are ignored."""
        return WebDriverWait(self.browser, seconds, 0.05, ignored_exceptions=(Exception,)).until(lambda _: condition())

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def see(self, selector: str, text: str = "", seconds: float = WAIT_SECONDS) -> WebElement:
        """Wait for an element that contains the text and return the first one."""
        element: WebElement = self.wait(lambda: next((e for e in self.all(selector) if text in e.text), None), seconds)
        return element

    def read(self, selector: str, text: str = "") -> str:
        """Wait like `see`, and return all that the element says, though it may be drawn anew at any moment."""
        shown: str = self.wait(lambda: next((s for s in (e.text for e in self.all(selector)) if s and text in s), None))
        return shown

    def drop(self, path: Path) -> None:
        self.see(".drop")
        self.browser.find_element(By.CSS_SELECTOR, ".drop input").send_keys(str(path))

    def choose(self, selector: str, value: str) -> None:
        Select(self.see(selector)).select_by_value(value)

    def faults(self) -> list[str]:
        """Errors in the browser's log."""
        severe = [e["message"] for e in self.browser.get_log("browser") if e["level"] == "SEVERE"]
        return [text for text in severe if "favicon" not in text]


def archive(folder: Path, people: Iterable[int], shots: int, *extra: tuple[str, bytes]) -> Path:
    """Write a zip of synthetic people, as person-N/SHOT.png, and of further entries."""
    path = folder / "people.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for who in people:
            for shot in range(shots):
                packed.writestr(f"person-{who}/{shot}.png", draw_photo(who, shot))
        for name, data in extra:
            packed.writestr(name, data)
    return path


def photo(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path
