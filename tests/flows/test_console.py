"""The operator's page, driven in a real browser over a real service."""

import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from ml import images
from ml.drawn import draw, person
from tests.service import Service

PEOPLE, SHOTS = 14, 5
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,1400", "--disable-background-networking")
COLOURED = """
const canvas = document.querySelector('.why canvas'), {width, height} = canvas;
const pixels = canvas.getContext('2d').getImageData(0, 0, width, height).data;
return [width, height, pixels.filter((v, i) => i % 4 === 0 && v !== pixels[i + 2]).length];
"""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs chromium and chromedriver, which are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'chromium'}"):
        options.add_argument(flag)
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield started
    started.quit()


def archive(folder: Path) -> Path:
    path = folder / "people.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for i in range(PEOPLE):
            for shot in range(SHOTS):
                packed.writestr(f"person-{i}/{shot}.png", images.png(draw(person(i), shot)))
        packed.writestr("person-0/not-a-picture.jpg", b"nothing to see")
    return path


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_operator_uploads_searches_labels_trains_and_publishes(
    service: Service, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    key = service.client.headers["Authorization"].removeprefix("Bearer ")

    def see(selector: str, text: str = "", seconds: float = 90) -> WebElement:
        def shown(_: object) -> WebElement | None:
            return next((e for e in browser.find_elements(By.CSS_SELECTOR, selector) if text in e.text), None)

        return WebDriverWait(browser, seconds, ignored_exceptions=(Exception,)).until(shown)  # type: ignore[return-value]

    browser.get(service.url)
    see("#key").send_keys(key)
    see("#enter").click()
    see("#collection").send_keys("staff")
    see("#make").click()

    see("#aligned").click()
    browser.find_element(By.CSS_SELECTOR, ".drop input").send_keys(str(archive(tmp_path)))
    see("#progress", f"{PEOPLE * SHOTS} enrolled, 1 refused")
    assert "not-a-picture.jpg" in see("#refusals").text
    see("#counts", f"{PEOPLE * SHOTS} faces of {PEOPLE} people")

    query = tmp_path / "query.png"
    query.write_bytes(images.png(draw(person(3), 77)))
    browser.get(f"{service.url}/#/staff/search")
    see("#query-aligned").click()
    browser.find_element(By.CSS_SELECTOR, ".drop input").send_keys(str(query))
    see(".photo .box")
    match = see(".match", "similarity")
    match.find_element(By.CSS_SELECTOR, "button.quiet").click()
    see(".why figcaption", "lbp: 100.0 % of the distance")
    width, height, coloured = browser.execute_script(COLOURED)
    assert (width, height) == (100, 170)
    assert coloured > 1000, "the grey crop is painted over with colours"
    match.find_element(By.CSS_SELECTOR, "button.good").click()
    see("#toasts", "Kept: the same person")
    assert len(service.client.get("/v1/labels").json()["labels"]) == 1

    browser.get(f"{service.url}/#/staff/learn")
    before = see("#champion").text
    see("#train").click()
    model = see("#candidate", "The candidate is").text.split()[-1].rstrip(".")
    assert see("#report", "held out")
    see("#curve .main-svg")
    publish = see(f"button[data-model='{model}']")
    publish.click()
    see("#toasts", "10 are needed")  # three of fourteen people were held out: the gate can tell nothing
    forced = {"model": model, "override": True, "reason": "a test of the page, not of the metric"}
    answer = service.client.post("/v1/collections/staff/deployments/identity:publish", json=forced)
    assert service.wait(answer)["state"] == "succeeded"
    browser.refresh()
    see("#champion", model)
    see("#rollback").click()
    see("#champion", before)

    mistakes = [
        e["message"] for e in browser.get_log("browser") if e["level"] == "SEVERE" and "favicon" not in e["message"]
    ]
    assert not mistakes
