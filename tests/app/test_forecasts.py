"""A forecast of a collection's growth over HTTP, and `likeness forecast`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from app.cli.main import app
from app.db.session import writing
from app.db.tables import Subject
from tests.app.test_clusters import make_gallery
from tests.databases import remove_test_data
from tests.rows import people
from tests.service import Service

pytestmark = pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
BASE = "/v1/collections/staff"


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


def enrol(service: Service, count: int, photos: int, distractors: int = 0) -> None:
    gallery = make_gallery(service, dim=16)
    rows, names = people(count, photos, 16, seed=5, spread=0.7)
    gallery.add({"m": rows}, names)
    if distractors:
        rows, _ = people(distractors, 1, 16, seed=6)
        gallery.add({"m": rows}, [None] * distractors, role="distractor")


def run_forecast(service: Service, **body: Any) -> dict[str, Any]:
    job = service.wait(service.client.post(f"{BASE}:forecast", json=body or None))
    assert job["state"] == "succeeded", job["problem"]
    report = service.client.get(f"{BASE}/forecast")
    assert report.status_code == 200, report.text
    assert report.json() == job["result"]
    return dict(job["result"])


def test_a_forecast_of_people_and_distractors(service: Service) -> None:
    enrol(service, 200, 2, 120)
    report = run_forecast(service, fpir=0.05)
    assert (report["faces"], report["people"], report["distractors"]) == (520, 200, 120)
    assert (report["fpir"], report["trained_here"], report["unmeasured_reason"]) == (0.05, False, None)
    assert report["check"] is None  # a tenth has 20 people
    points = {point["factor"]: point for point in report["points"]}
    assert [p["is_measured"] for p in report["points"]] == [True] * 5 + [False] * 6
    assert (points[1]["faces"], points[10]["faces"], points[100]["people"]) == (520, 5200, 20000)
    assert points[10]["strangers_named"]["value"] > points[1]["strangers_named"]["value"]
    assert points[10]["people_found"]["value"] < points[1]["people_found"]["value"]
    assert points[100]["kept_distance"] < points[10]["kept_distance"] < points[1]["kept_distance"]
    assert points[10]["distractors_named"] is not None


def test_people_who_have_refused_are_in_no_forecast(service: Service) -> None:
    enrol(service, 150, 2)
    with writing(service.resources.database) as session:
        refused = session.scalars(select(Subject).order_by(Subject.id).limit(20)).all()
        for subject in refused:
            subject.consent = False
    report = run_forecast(service, fpir=0.05)
    assert (report["faces"], report["people"]) == (260, 130)
    assert report["points"]


def test_a_small_gallery_has_no_points(service: Service) -> None:
    enrol(service, 30, 2, 20)
    report = run_forecast(service)
    assert (report["points"], report["distance"], report["check"]) == ([], None, None)
    assert report["unmeasured_reason"] == "70 more people with a name are needed"


def test_only_distractors_or_nobody(service: Service) -> None:
    gallery = make_gallery(service, dim=16)
    assert run_forecast(service)["unmeasured_reason"] == "100 more people with a name are needed"
    gallery.add({"m": people(150, 1, 16)[0]}, [None] * 150, role="distractor")
    report = run_forecast(service)
    assert (report["points"], report["distractors"]) == ([], 150)


def test_without_a_threshold_the_forecast_fails(service: Service) -> None:
    gallery = make_gallery(service, calibrated=False, dim=16)
    rows, names = people(110, 1, 16)
    gallery.add({"m": rows}, names)
    job = service.wait(service.client.post(f"{BASE}:forecast", json={"fpir": 0.001}))
    assert job["state"] == "failed"
    assert job["problem"]["code"] == "NotCalibrated"


def test_requests_that_cannot_be_answered(service: Service) -> None:
    make_gallery(service, dim=16)
    assert service.client.get(f"{BASE}/forecast").status_code == 404
    assert service.client.post("/v1/collections/nobody:forecast").status_code == 404
    assert service.client.post(f"{BASE}:forecast", json={"fpir": 0}).status_code == 422
    assert service.client.get(f"{BASE}/forecast", headers=service.key("reader")).status_code == 403


def test_the_command_prints_sizes_and_writes_a_plot(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    enrol(service, 160, 2)
    monkeypatch.setenv("LIKENESS_URL", service.url)
    monkeypatch.setenv("LIKENESS_KEY", service.client.headers["Authorization"].removeprefix("Bearer "))
    monkeypatch.setenv("COLUMNS", "300")
    plot = tmp_path / "growth.svg"
    printed = CliRunner().invoke(app, ["forecast", "staff", "--fpir", "0.05", "--plot", str(plot)])
    assert printed.exit_code == 0, printed.output
    assert "320 faces of 160 people" in printed.output
    assert "32,000" in printed.output
    assert "too few people for a check" in printed.output
    assert plot.read_text().startswith("<svg")
