"""Search and labels on the console."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from app.config import Settings
from tests import gallery
from tests.app.test_chosen_faces import PEOPLE, group_photo
from tests.flows.console import Page, borrow_browser, photo
from tests.gallery import draw_photo
from tests.service import Service, run_service

BASE = "/v1/collections/staff"
GALLERY = (*PEOPLE, 11, 12, 13)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    with run_service(
        Settings(home=home, poll_seconds=0.05, workers=1, wpca_after_faces=0, default_recogniser="lbp")
    ) as started:
        yield started


@pytest.fixture(scope="module")
def members(service: Service) -> set[str]:
    """The faces of a collection of drawn people with three photos each."""
    service.client.put(BASE).raise_for_status()
    shots = [(who, shot) for who in GALLERY for shot in range(3)]
    return {enrol(service, draw_photo(who, shot), f"p{who}") for who, shot in shots}


@pytest.fixture(autouse=True)
def staff(service: Service, members: set[str]) -> Iterator[None]:
    """The collection with its members alone, as each test finds and leaves it."""
    wait_until_found(service, members)
    yield
    for face_id in list_faces(service) - members:
        service.client.delete(f"{BASE}/faces/{face_id}").raise_for_status()
    for subject in service.client.get(f"{BASE}/subjects").json()["subjects"]:
        if not subject["face_count"]:
            service.client.delete(f"{BASE}/subjects/{subject['id']}").raise_for_status()
    assert labels(service) == []
    assert list_faces(service) == members


def list_faces(service: Service) -> set[str]:
    return {face["face_id"] for face in service.client.get(f"{BASE}/faces").json()["faces"]}


def enrol(service: Service, data: bytes, subject: str = "") -> str:
    answer = service.client.post(f"{BASE}/faces", files={"file": data}, data={"subject": subject})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["face_records"][0]["face_id"])


def wait_until_found(service: Service, face_ids: set[str]) -> None:
    """Wait until searches find these faces and no others. The index reads them from the table."""
    face_id = min(face_ids)
    path = f"{BASE}/faces/{face_id}/search"
    until = time.monotonic() + 20
    while True:
        answer = service.client.post(path, params={"group_by": "face", "limit": 100})
        if answer.status_code == 200:
            found = {match["face_id"] for match in answer.json()["faces"][0]["matches"]}
            if found | {face_id} == face_ids:
                return
        assert time.monotonic() < until, answer.text
        time.sleep(0.05)


def labels(service: Service) -> list[dict[str, Any]]:
    return list(service.client.get("/v1/labels").json()["labels"])


def face(service: Service, face_id: str) -> dict[str, Any]:
    return dict(service.client.get(f"{BASE}/faces/{face_id}").json())


def search(page: Page, path: Path) -> None:
    page.open("staff/search")
    page.drop(path)
    page.see(".photo .box")
    page.see(".match")


def first_match(page: Page) -> WebElement:
    return page.see("#matches > .match")


def say(page: Page, match: WebElement, same: bool) -> None:
    match.find_element(By.CSS_SELECTOR, "button.good" if same else "button.bad").click()
    page.see("#toasts", "Kept: the same person" if same else "Kept: not the same person")


def other_of(label: dict[str, Any], face_id: str) -> str:
    pair = {label["face_a"], label["face_b"]}
    assert face_id in pair
    return str((pair - {face_id}).pop())


def test_a_label_refers_to_the_chosen_face_of_the_photo(service: Service, page: Page, tmp_path: Path) -> None:
    group = group_photo(shot=60)
    search(page, photo(tmp_path, "group.png", group))
    boxes = page.wait(lambda: (shown := page.all(".photo .box")) and len(shown) == len(PEOPLE) and shown)
    boxes[3].click()
    page.wait(lambda: boxes[3].get_attribute("aria-pressed") == "true")
    match = first_match(page)
    matched = match.get_attribute("data-face")
    say(page, match, same=False)
    [label] = labels(service)
    stored_face = face(service, other_of(label, matched))
    faces = service.client.post(f"{BASE}/search", files={"file": group}, params={"face_selection": "all"}).json()[
        "faces"
    ]
    assert stored_face["bounding_box"] == faces[3]["bounding_box"]
    assert (stored_face["subject"], stored_face["metadata"]) == (None, {"kept_for": "labels"})
    assert service.client.get(BASE).json()["face_count"] == 3 * len(GALLERY) + 1, "one face of the four"


def test_a_label_of_an_enrolled_photo_refers_to_the_enrolled_face(
    service: Service, members: set[str], page: Page, tmp_path: Path
) -> None:
    data = draw_photo(21, 0)
    enrolled = enrol(service, data, "p21")
    wait_until_found(service, members | {enrolled})
    search(page, photo(tmp_path, "enrolled.png", data))
    match = page.wait(
        lambda: next(m for m in page.all("#matches > .match") if m.get_attribute("data-face") != enrolled)
    )
    matched = match.get_attribute("data-face")
    say(page, match, same=False)
    [label] = labels(service)
    assert other_of(label, matched) == enrolled
    assert service.client.get(BASE).json()["face_count"] == 3 * len(GALLERY) + 1


def test_a_face_cannot_be_labelled_against_itself(
    service: Service, members: set[str], page: Page, tmp_path: Path
) -> None:
    data = draw_photo(22, 0)
    enrolled = enrol(service, data, "p22")
    wait_until_found(service, members | {enrolled})
    search(page, photo(tmp_path, "itself.png", data))
    match = page.see(f".match[data-face='{enrolled}']")
    match.find_element(By.CSS_SELECTOR, "button.good").click()
    page.see("#toasts", "a face is not compared with itself")
    assert labels(service) == []


def test_the_labelled_query_can_be_named_or_removed(service: Service, page: Page, tmp_path: Path) -> None:
    search(page, photo(tmp_path, "new.png", draw_photo(11, 60)))
    match = first_match(page)
    name = match.find_element(By.CSS_SELECTOR, "strong").text
    matched = match.get_attribute("data-face")
    say(page, match, same=True)
    kept = other_of(labels(service)[0], matched)
    assert "without a name" in page.read("#kept")
    page.see("#name-query", f"Add it to {name}").click()
    page.see("#kept", f"belongs to {name}")
    assert face(service, kept)["subject"]["id"] == name

    search(page, photo(tmp_path, "other.png", draw_photo(12, 60)))
    say(page, first_match(page), same=False)
    assert len(labels(service)) == 2
    assert not page.all("#name-query"), "somebody else's name is not offered"
    page.see("#remove-query").click()
    page.see("#kept", "were removed")
    assert len(labels(service)) == 1
    assert service.client.get(BASE).json()["face_count"] == 3 * len(GALLERY) + 1


def test_unnamed_faces_are_listed_apart_from_people(
    service: Service, members: set[str], page: Page, tmp_path: Path
) -> None:
    data = draw_photo(13, 62)
    wait_until_found(service, members | {enrol(service, data)})
    search(page, photo(tmp_path, "query.png", data))
    assert page.read("#nameless summary") == "Faces without a name (1)"
    assert page.see("#nameless").get_attribute("open") is None
    names = [m.find_element(By.CSS_SELECTOR, "strong").text for m in page.all("#matches > .match")]
    assert names
    assert all(name.startswith("p") for name in names)


DELAY_FIRST = """
const send = window.fetch;
let count = 0;
window.searches = 0;
window.answered = 0;
window.fetch = async (url, options) => {
  if (!String(url).includes('/search')) return send(url, options);
  window.searches += 1;
  const mine = (count += 1);
  const {signal, ...rest} = options;          // the answer comes, even though the page has lost interest in it
  const answer = await send(url, rest);
  if (mine === 1) await new Promise((done) => setTimeout(done, 1500));
  window.answered += 1;
  return answer;
};
"""


def test_a_late_answer_is_not_shown_under_a_newer_photo(service: Service, page: Page, tmp_path: Path) -> None:
    page.open("staff/search")
    page.browser.refresh()
    page.see(".drop")
    page.browser.execute_script(DELAY_FIRST)
    old, new = (photo(tmp_path, f"{who}.png", draw_photo(who, 1)) for who in (11, 12))
    page.drop(old)
    page.wait(lambda: page.browser.execute_script("return window.searches") == 1)
    page.drop(new)
    page.see(".match")
    first = first_match(page).find_element(By.CSS_SELECTOR, "strong").text
    assert first == "p12"
    page.wait(lambda: page.browser.execute_script("return window.answered") == 2)
    page.browser.execute_async_script("setTimeout(arguments[0], 200)")
    assert first_match(page).find_element(By.CSS_SELECTOR, "strong").text == "p12"
    page.browser.refresh()


def test_choosing_another_photo_removes_the_matches_at_once(service: Service, page: Page, tmp_path: Path) -> None:
    search(page, photo(tmp_path, "face.png", draw_photo(11, 1)))
    grey = Pillow.new("RGB", (300, 300), "grey")
    path = tmp_path / "nobody.png"
    grey.save(path)
    page.drop(path)
    assert "no face" in page.read("#matches .problem")
    assert not page.all(".match")
    assert not page.all(".photo .box")


def test_changing_the_number_of_matches_searches_again(service: Service, page: Page, tmp_path: Path) -> None:
    group = photo(tmp_path, "group.png", group_photo(shot=61))
    search(page, group)
    page.wait(lambda: len(page.all(".photo .box")) == len(PEOPLE))
    page.all(".photo .box")[2].click()
    page.browser.execute_script(
        "const s = document.querySelector('#limit'); s.options[0].value = s.options[0].text = '3'"
    )
    page.choose("#limit", "24")
    page.wait(lambda: len(page.all("#matches .match")) > 3)
    page.choose("#limit", "3")
    page.wait(lambda: len(page.all("#matches .match")) == 3)
    pressed = [box.get_attribute("aria-pressed") for box in page.all(".photo .box")]
    assert pressed == ["false", "false", "true", "false"], "the face that was chosen stays chosen"


def test_the_decision_is_shown_above_the_matches(service: Service, page: Page, tmp_path: Path) -> None:
    service.client.put("/v1/collections/verdicts").raise_for_status()
    faces = gallery.enrol(service.resources, "verdicts", range(40), shots=4, strength=0.2)
    path = f"/v1/collections/verdicts/faces/{faces[0].face_id}/search"
    page.wait(lambda: service.client.post(path).json()["threshold"] is not None)
    page.open(f"verdicts/search/{faces[0].face_id}")
    assert page.see("#verdict", "Possible: worth a look").get_attribute("data-decision") == "possible"
    page.choose("#fpir", "0.05")
    assert page.see("#verdict", "Match: p0").get_attribute("data-decision") == "match"
    assert "about 1 in 20 people" in page.read("#verdict")
    match = first_match(page)
    assert match.find_element(By.CSS_SELECTOR, "strong").text == "p0"
    assert match.find_element(By.CSS_SELECTOR, ".tag").text == "very likely"
    assert len(match.find_elements(By.CSS_SELECTOR, ".thumbs button")) == 3, "her other faces"
    weak = page.all("#matches > .match")[-1].find_element(By.CSS_SELECTOR, ".tag").text
    assert weak == "weak"
    assert "%" not in page.read("#matches > .match"), "no share of a hundred stands beside a name"

    page.open("verdicts/search")
    page.drop(photo(tmp_path, "stranger.png", draw_photo(999, 1)))
    page.wait(lambda: page.see("#verdict").get_attribute("data-decision") in ("unknown", "possible"))
    assert service.client.delete("/v1/collections/verdicts").status_code < 300


def test_the_page_gives_no_decision_where_nothing_was_measured(service: Service, page: Page, tmp_path: Path) -> None:
    search(page, photo(tmp_path, "face.png", draw_photo(11, 1)))
    assert page.see("#verdict", "No verdict").get_attribute("data-decision") == "none"
    assert "Nothing is measured here to decide by" in page.read("#evidence")
    assert not first_match(page).find_elements(By.CSS_SELECTOR, ".tag")


def test_a_label_refers_to_the_face_that_is_shown_for_the_person(service: Service, page: Page, tmp_path: Path) -> None:
    search(page, photo(tmp_path, "query.png", draw_photo(12, 60)))
    match = first_match(page)
    second = match.find_elements(By.CSS_SELECTOR, ".thumbs button")[1]
    chosen = second.get_attribute("data-face")
    assert chosen != match.get_attribute("data-face")
    second.click()
    say(page, match, same=True)
    assert chosen in {labels(service)[0]["face_a"], labels(service)[0]["face_b"]}


def test_a_forgotten_key_leaves_no_picture_for_the_next_one(service: Service, members: set[str]) -> None:
    service.client.put("/v1/collections/elsewhere").raise_for_status()
    guest = service.client.post(
        "/v1/keys", json={"role": "reader", "name": "guest", "collections": ["elsewhere"]}
    ).json()
    with borrow_browser() as browser:
        page = Page(browser, service)
        page.enter()
        address = f"staff/search/{min(members)}"
        page.open(address)
        page.see("#query img")
        page.see(".match")
        page.see("#leave").click()
        page.see("#key").send_keys(guest["key"])
        page.see("#enter").click()
        page.see("#make")
        page.open(address)
        page.see("#matches .problem")
        assert not page.all("#query img")


def test_the_picture_of_a_face_that_was_removed_is_no_longer_shown(
    service: Service, members: set[str], page: Page
) -> None:
    face_id = enrol(service, draw_photo(23, 0), "p23")
    wait_until_found(service, members | {face_id})
    page.open(f"staff/search/{face_id}")
    page.see("#query img")
    page.see(".match")
    service.client.delete(f"{BASE}/faces/{face_id}").raise_for_status()
    page.choose("#limit", "24")
    page.see("#matches .problem")
    assert not page.all("#query img")


REFUSE_FIRST_CROP = """
const send = window.fetch;
let refused = false;
window.fetch = async (url, options) => {
  if (refused || !String(url).includes('/crop')) return send(url, options);
  refused = true;
  return new Response('{"detail": "the store is away"}', {status: 503});
};
"""


def test_a_picture_that_could_not_be_fetched_is_fetched_again(service: Service, members: set[str], page: Page) -> None:
    page.open("staff/search")
    page.browser.execute_script(REFUSE_FIRST_CROP)
    page.open(f"staff/search/{min(members)}")
    page.see("#matches .problem", "the store is away")
    page.choose("#limit", "24")
    page.see("#query img")
    page.see(".match")
    page.browser.refresh()
