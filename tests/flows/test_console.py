"""The console, used in a real browser against a real service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ml import images
from ml.synthetic_faces import draw, person
from tests.flows.console import Page, archive, borrow_browser, photo
from tests.service import Service

PEOPLE, SHOTS = 14, 5
COLOURED = """
const canvas = document.querySelector('.why canvas'), {width, height} = canvas;
const pixels = canvas.getContext('2d').getImageData(0, 0, width, height).data;
return [width, height, pixels.filter((v, i) => i % 4 === 0 && v !== pixels[i + 2]).length];
"""


@pytest.fixture
def page(service: Service) -> Iterator[Page]:
    with borrow_browser() as browser:
        yield Page(browser, service)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_operator_uploads_searches_labels_trains_and_publishes(page: Page, tmp_path: Path) -> None:
    client = page.service.client
    page.enter()
    page.see("#collection").send_keys("staff")
    page.see("#make").click()

    page.see("#aligned").click()
    page.drop(archive(tmp_path, range(PEOPLE), SHOTS, ("person-0/not-a-picture.jpg", b"nothing to see")))
    page.see("#progress", f"{PEOPLE * SHOTS} enrolled, 1 refused")
    assert "not-a-picture.jpg" in page.read("#refusals")
    page.see("#counts", f"{PEOPLE * SHOTS} faces of {PEOPLE} people")

    page.open("staff/search")
    page.see("#query-aligned").click()
    page.drop(photo(tmp_path, "query.png", images.encode_png(draw(person(3), 77))))
    page.see(".photo .box")
    match = page.see(".match")
    match.find_element("css selector", "button.quiet").click()
    page.see(".why figcaption", "lbp: 100.0 % of the distance")
    width, height, coloured = page.browser.execute_script(COLOURED)
    assert (width, height) == (100, 170)
    assert coloured > 1000, "the grey crop is painted over with colours"
    match.find_element("css selector", "button.good").click()
    page.see("#toasts", "Kept: the same person")
    assert len(client.get("/v1/labels").json()["labels"]) == 1

    page.open("staff/learn")
    before = page.read("#champion")
    page.choose("#method", "ldml")
    page.see("#train").click()
    model = page.read("#candidate", "The candidate is").split()[-1].rstrip(".")
    assert page.see("#report", "held out")
    page.see("#curve .main-svg")
    page.see(f"button[data-model='{model}']").click()
    page.see("#toasts", "10 are needed")  # three of fourteen people were held out: the gate can tell nothing
    forced = {"model": model, "override": True, "reason": "a test of the page, not of the metric"}
    answer = client.post("/v1/collections/staff/deployments/identity:publish", json=forced)
    assert page.service.wait(answer)["state"] == "succeeded"
    page.open("staff/learn")
    page.see("#champion", model)
    page.see("#rollback").click()
    page.see("#champion", before)
    assert not page.faults()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_address_that_names_no_page_says_so_and_shows_the_collections(page: Page) -> None:
    page.enter()
    for address in ("%/gallery", "staff/nothing", "staff/constructor"):
        page.browser.get("about:blank")
        page.open(address)
        page.see("#toasts", "There is no page at this address")
        page.see("#make")
    assert not page.faults()
