"""The console shows running jobs, also after the page is reloaded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.config import Settings
from app.db.session import writing
from app.db.tables import Job, Training, now
from app.queue.jobs import enqueue
from app.queue.messages import ImportArchive, Message, Train
from ml.descriptors import dlib_resnet
from tests.app.test_faces import picture
from tests.flows.console import Page, borrow_browser
from tests.ml.tiny_onnx import tiny_onnx
from tests.service import Service, run_service

BASE = "/v1/collections/staff"
LATER = 3600.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("home")
    tiny = {"tiny": tiny_onnx(tmp_path_factory.mktemp("onnx"))}
    settings = Settings(home=home, poll_seconds=0.05, workers=1, default_recogniser="lbp", descriptor_manifests=tiny)
    with run_service(settings) as started:
        started.client.put(BASE).raise_for_status()
        yield started


def begin(service: Service, message: Message) -> str:
    """A job that is under way, and that no worker takes."""
    with writing(service.resources.database) as session:
        job = enqueue(session, message, delay=LATER)
        job.started_at = now()
        return job.id


def change(service: Service, kind: type[Any], key: str, **values: object) -> None:
    with writing(service.resources.database) as session:
        row = session.get_one(kind, key)
        for name, value in values.items():
            setattr(row, name, value)


def test_a_running_import_is_shown_after_a_reload(service: Service, page: Page) -> None:
    job = begin(service, ImportArchive(collection="staff", path="/none"))
    other = begin(service, ImportArchive(collection="guests", path="/none"))
    change(service, Job, job, total=400, done=120, failed=3)
    page.open("staff/gallery")
    page.see("#progress", "running: 120 enrolled, 3 refused of 400")
    page.browser.refresh()
    page.see("#progress", "120 enrolled")
    assert len(page.all("#progress progress")) == 1, "the import of another collection is not shown here"
    change(service, Job, job, done=397)
    page.see("#progress", "397 enrolled")
    face = service.client.post(f"{BASE}/faces", files={"file": picture(7)}, data={"aligned": True}).json()[
        "face_records"
    ][0]
    change(service, Job, job, state="succeeded", finished_at=now())
    page.see("#progress", "succeeded")
    assert page.see("#faces a").get_attribute("data-face") == face["face_id"], "and the newest faces follow"
    for each in (job, other):
        change(service, Job, each, state="cancelled", finished_at=now())


def test_the_newest_faces_are_shown_first(service: Service, page: Page) -> None:
    ids = []
    for seed in range(70, 75):
        answer = service.client.post(f"{BASE}/faces", files={"file": picture(seed)}, data={"aligned": True})
        ids.append(answer.json()["face_records"][0]["face_id"])
    page.open("staff/gallery")
    page.see("#faces a")
    assert [a.get_attribute("data-face") for a in page.all("#faces a")][:5] == ids[::-1]


def test_a_running_training_is_shown_after_a_reload(service: Service, page: Page) -> None:
    request = {"collection": "staff", "method": "ldml"}
    with writing(service.resources.database) as session:
        training = Training(request=request, curve=[{"step": 1, "loss": 0.9}])
        session.add(training)
    job = begin(service, Train(training=training.id, collection="staff"))
    change(service, Training, training.id, job_id=job)
    page.open("staff/learn")
    page.see("#training-state", "running")
    page.browser.refresh()
    page.see("#training-state", "running")
    page.see("#curve .main-svg")
    change(
        service, Job, job, state="failed", finished_at=now(), problem={"code": "TooFewLabels", "detail": "label more"}
    )
    page.see("#training-state", "label more")
    page.browser.refresh()
    page.see("#train")
    assert not page.all("#training-state"), "what has ended is not under way"


def test_a_training_uses_the_champions_descriptor_unless_another_is_chosen(service: Service, page: Page) -> None:
    page.open("staff/learn")
    options = [o.get_attribute("value") for o in page.see("#descriptor").find_elements("css selector", "option")]
    descriptors = service.client.get("/v1/methods").json()["descriptors"]
    assert options == ["", *(entry["name"] for entry in descriptors if entry["installed"])]
    assert {"lbp", "tiny"} <= set(options)
    before = trainings(service)
    page.see("#train").click()
    page.wait(lambda: len(trainings(service)) > len(before))
    request = trainings(service)[0]["request"]
    assert request["descriptors"] == [{"name": "lbp", "options": {}}], "that of the model that serves"


def trainings(service: Service) -> list[dict[str, Any]]:
    return list(service.client.get("/v1/trainings", params={"order": "newest"}).json()["trainings"])


def test_the_recogniser_can_be_chosen(service: Service, page: Page) -> None:
    service.client.put("/v1/collections/few").raise_for_status()
    for seed in range(3):
        answer = service.client.post("/v1/collections/few/faces", files={"file": picture(seed)}, data={"aligned": True})
        answer.raise_for_status()
    page.open("few/learn")
    assert page.read("[data-recogniser='lbp'] .tag") == "serving"
    assert "not installed" in page.read("[data-recogniser='sface']")
    offered = [o.get_attribute("value") for o in page.see("#recogniser").find_elements("css selector", "option")]
    assert "tiny" in offered
    assert "sface" not in offered, "what is not installed cannot be chosen"
    page.choose("#recogniser", "tiny")
    page.see("#use-recogniser").click()
    page.see("#toasts", "tiny describes the faces now")
    page.see("[data-recogniser='tiny'] .tag", "serving")
    assert page.read("#champion") != "lbp-l2"
    page.see("#rollback").click()
    page.see("[data-recogniser='lbp'] .tag", "serving")


def test_the_page_warns_that_the_strong_recogniser_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlib_resnet, "find_spec", lambda name: None)
    settings = Settings(home=tmp_path / "home", poll_seconds=0.05, workers=1)
    with run_service(settings) as weak, borrow_browser() as browser:
        page = Page(browser, weak)
        page.enter()
        notice = page.read("#recogniser-notice")
        assert "served by LBP, a weak recogniser" in notice
        assert "pip install" in notice
