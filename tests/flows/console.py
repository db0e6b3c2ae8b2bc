"""The operator's page in a real browser, over a real service."""

import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from ml import images
from ml.synthetic_faces import draw, person
from tests.service import Service

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,1400", "--disable-background-networking")
WAIT_SECONDS = 60


@contextmanager
def open_browser(folder: Path, *flags: str) -> Iterator[webdriver.Chrome]:
    """Chromium without a window; the test is skipped where it is not installed."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs chromium and chromedriver, which are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, *flags, f"--user-data-dir={folder / 'chromium'}"):
        options.add_argument(flag)
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield started
    finally:
        started.quit()


@dataclass(frozen=True)
class Page:
    """What a test does on the page, and what it sees there."""

    browser: webdriver.Chrome
    service: Service

    @property
    def key(self) -> str:
        return self.service.client.headers["Authorization"].removeprefix("Bearer ")

    def enter(self) -> None:
        """Open the page and type the key in."""
        self.browser.get(self.service.url)
        self.see("#key").send_keys(self.key)
        self.see("#enter").click()
        self.see("#make")

    def open(self, view: str) -> None:
        """A view by its address, as `staff/search`; the view before it is gone then."""
        address = f"{self.service.url}/#/{view}"
        if self.browser.current_url == address:
            self.browser.refresh()
        else:
            self.browser.execute_script("document.querySelector('#view > *')?.setAttribute('data-old', '')")
            self.browser.get(address)
        self.wait(lambda: self.all("#view > *") and not self.all("#view > [data-old]"))

    def wait(self, condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        """The condition's value, once it is true; a page that changes meanwhile is looked at again."""
        return WebDriverWait(self.browser, seconds, 0.05, ignored_exceptions=(Exception,)).until(lambda _: condition())

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def see(self, selector: str, text: str = "", seconds: float = WAIT_SECONDS) -> WebElement:
        """The first such element that shows the text, once there is one."""
        found: WebElement = self.wait(lambda: next((e for e in self.all(selector) if text in e.text), None), seconds)
        return found

    def drop(self, path: Path) -> None:
        self.see(".drop")
        self.browser.find_element(By.CSS_SELECTOR, ".drop input").send_keys(str(path))

    def choose(self, selector: str, value: str) -> None:
        Select(self.see(selector)).select_by_value(value)

    def faults(self) -> list[str]:
        """What the browser's console says went wrong."""
        severe = [e["message"] for e in self.browser.get_log("browser") if e["level"] == "SEVERE"]
        return [text for text in severe if "favicon" not in text]


def archive(folder: Path, people: Iterable[int], shots: int, *extra: tuple[str, bytes]) -> Path:
    """A zip of drawn people, person-N/SHOT.png, and further entries."""
    path = folder / "people.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for who in people:
            for shot in range(shots):
                packed.writestr(f"person-{who}/{shot}.png", images.encode_png(draw(person(who), shot)))
        for name, data in extra:
            packed.writestr(name, data)
    return path


def photo(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path
