"""The training form of the operator's page: every method with its options, as GET /v1/methods lists them."""

from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.remote.webelement import WebElement

from app.config import Settings
from tests.flows.console import Page
from tests.service import Service, run_service

COLLECTION = "staff"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    settings = Settings(home=tmp_path_factory.mktemp("home"), poll_seconds=0.05, workers=1, default_recogniser="lbp")
    with run_service(settings) as started:
        started.client.put(f"/v1/collections/{COLLECTION}").raise_for_status()
        yield started


@pytest.fixture(scope="module")
def catalogue(service: Service) -> dict[str, Any]:
    return dict(service.client.get("/v1/methods").json())


def values_of(select: WebElement) -> list[str | None]:
    return [option.get_attribute("value") for option in select.find_elements("css selector", "option")]


def field(page: Page, part: str, option: str) -> WebElement:
    """The input of an option. Its list of options is opened first."""
    for details in page.all(f"{part} details:not([open]) summary"):
        details.click()
    return page.see(f"{part} [data-option='{option}'] input, {part} [data-option='{option}'] select")


def trainings(service: Service) -> list[dict[str, Any]]:
    return list(service.client.get("/v1/trainings", params={"order": "newest"}).json()["trainings"])


def test_the_form_offers_every_method_and_starts_at_the_default(page: Page, catalogue: dict[str, Any]) -> None:
    page.open(f"{COLLECTION}/learn")
    method = page.see("#method")
    assert values_of(method) == [entry["name"] for entry in catalogue["methods"]]
    assert method.get_attribute("value") == catalogue["default_method"]
    [default] = [entry for entry in catalogue["methods"] if entry["name"] == catalogue["default_method"]]
    assert page.read("#method-options p") == default["summary"]


def test_fields_follow_the_method_with_their_type_range_and_help(page: Page, catalogue: dict[str, Any]) -> None:
    page.open(f"{COLLECTION}/learn")
    for name in ("clml", "cosine"):
        [entry] = [entry for entry in catalogue["methods"] if entry["name"] == name]
        page.choose("#method", name)
        rows = page.all("#method-options [data-option]")
        assert [row.get_attribute("data-option") for row in rows] == [option["name"] for option in entry["options"]]
    page.choose("#method", "clml")
    dim, held_out = field(page, "#method-options", "dim"), field(page, "#method-options", "held_out")
    assert (dim.get_attribute("type"), dim.get_attribute("min"), dim.get_attribute("placeholder")) == (
        "number",
        "1",
        "128",
    )
    assert (held_out.get_attribute("min"), held_out.get_attribute("max")) == ("0", "1")
    assert field(page, "#method-options", "unit").is_selected()
    start = field(page, "#method-options", "start")
    assert values_of(start) == ["lda", "wpca", "pca", "random", "learned"]
    assert "numbers of an embedding" in page.read("#method-options [data-option='dim']")


def test_a_training_gets_the_options_that_were_changed_and_no_others(service: Service, page: Page) -> None:
    page.open(f"{COLLECTION}/learn")
    before = len(trainings(service))
    page.choose("#method", "clml")
    field(page, "#method-options", "dim").send_keys("3")
    field(page, "#method-options", "held_out").send_keys("0.25")
    field(page, "#method-options", "ks").send_keys("2, 4")
    field(page, "#method-options", "unit").click()
    page.choose("#method-options [data-option='start'] select", "pca")
    page.choose("#descriptor", "lbp")
    field(page, "#descriptor-options", "margin").send_keys("1")
    page.choose("#descriptor-options [data-option='patterns'] select", "59")
    page.see("#train").click()
    page.wait(lambda: len(trainings(service)) > before)
    request = trainings(service)[0]["request"]
    assert request["descriptors"] == [{"name": "lbp", "options": {"margin": 1, "patterns": 59}}]
    changed = {"dim": 3, "held_out": 0.25, "ks": [2, 4], "unit": False, "start": "pca"}
    assert request["options"].items() >= changed.items()


def test_a_value_out_of_range_is_shown_and_not_sent(service: Service, page: Page) -> None:
    page.open(f"{COLLECTION}/learn")
    before = len(trainings(service))
    page.choose("#method", "wpca")
    sample = field(page, "#method-options", "sample")
    sample.send_keys("0")
    page.see("#method-options summary").click()
    page.see("#train").click()
    page.wait(lambda: page.all("#method-options details[open]"))
    assert sample.get_property("validity")["rangeUnderflow"]
    assert len(trainings(service)) == before
    assert not page.faults()
