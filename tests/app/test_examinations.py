"""An examination of a collection over HTTP, and `likeness doctor`."""

from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.db.session import writing
from app.db.tables import Face
from tests.app.test_clusters import make_gallery
from tests.rows import people
from tests.service import Service

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
BASE = "/v1/collections/staff"


def make_faulty_gallery(service: Service) -> dict[str, list[str]]:
    """240 people with four photos each, of whom one is enrolled twice, one has a face of another, and one is two.

    Returns the ids of the faces of each subject.
    """
    gallery = make_gallery(service, dim=32)
    rows, names = people(240, 4, 32, seed=5)
    given = list(names)
    given[40:42] = ["p010-again"] * 2  # of p010
    given[80] = "p050"  # a face of p020
    given[120:122] = ["p060"] * 2  # two faces of p030
    faces = gallery.add({"m": rows}, given)
    by_subject: dict[str, list[str]] = {}
    for name, face in zip(given, faces, strict=True):
        by_subject.setdefault(name, []).append(face)
    with writing(service.resources.database) as session:
        session.get_one(Face, gallery.pks[0]).quality = {"sharpness": 5.0, "contrast": 40.0, "eye_distance": 60.0}
        session.get_one(Face, gallery.pks[1]).quality = {"sharpness": 80.0, "contrast": 40.0, "eye_distance": 60.0}
    service.client.patch(f"{BASE}/deployments/identity", json={"default_fpir": 0.05}).raise_for_status()
    return by_subject | {"p020 as p050": [faces[80]], "p030 as p060": faces[120:122], "poor": faces[:1]}


def examine(service: Service) -> dict[str, Any]:
    job = service.wait(service.client.post(f"{BASE}:examine"))
    assert job["state"] == "succeeded", job["problem"]
    report = service.client.get(f"{BASE}/findings")
    assert report.status_code == 200, report.text
    found: dict[str, Any] = report.json()
    assert job["result"] == {name: value for name, value in found.items() if name != "findings"}
    return found


def test_planted_faults_are_found(service: Service) -> None:
    faces = make_faulty_gallery(service)
    report = examine(service)
    assert (report["faces"], report["subjects"], report["subjects_with_one_face"]) == (960, 241, 0)
    assert report["unmeasured_reason"] is None
    by_kind = {kind: [f for f in report["findings"] if f["kind"] == kind] for kind in report["counts"]}
    assert {kind: len(findings) for kind, findings in by_kind.items()} == report["counts"]
    twice = next(f for f in by_kind["duplicate"] if "p010-again" in f["subjects"])
    assert set(twice["subjects"]) == {"p010", "p010-again"}
    assert twice["strangers_named_after"] < report["strangers_named"]
    wrong = next(f for f in by_kind["wrong_name"] if f["faces"] == faces["p020 as p050"])
    assert wrong["subjects"] == ["p050", "p020"]
    mixture = next(f for f in by_kind["mixture"] if f["subjects"] == ["p060"])
    assert set(mixture["faces"]) == set(faces["p030 as p060"])
    [poor] = by_kind["poor_face"]
    assert (poor["subjects"], poor["faces"]) == (["p000"], faces["poor"])


def test_a_subject_with_faces_of_strangers_is_named_for_strangers(service: Service) -> None:
    gallery = make_gallery(service, dim=32)
    rows, names = people(240, 4, 32, seed=5)
    given: list[str | None] = list(names)
    for person in range(200, 216):
        first, second, third, fourth = range(4 * person, 4 * person + 4)
        given[first] = "p007"
        given[second] = given[third] = given[fourth] = None
    nameless = [i for i, name in enumerate(given) if name is None]
    named = np.setdiff1d(np.arange(len(rows)), nameless)
    faces = gallery.add({"m": rows[named]}, [given[i] for i in named])
    gallery.add({"m": rows[nameless[::3]]}, [None] * 16)
    gallery.add({"m": rows[nameless[1::6]]}, [None] * 8, role="distractor")
    service.client.patch(f"{BASE}/deployments/identity", json={"default_fpir": 0.05}).raise_for_status()
    report = examine(service)
    assert (report["faces"], report["subjects"], report["subjects_with_one_face"]) == (len(named), 224, 0)
    found = {tuple(f["subjects"]): f for f in report["findings"] if f["kind"] == "named_for_strangers"}
    finding = found["p007",]
    added = {faces[np.flatnonzero(named == 4 * person)[0]] for person in range(200, 216)}
    assert len(added & set(finding["faces"])) >= 0.8 * len(finding["faces"]) > 0
    assert finding["strangers"] > finding["strangers_after"]
    assert f"{finding['strangers']} strangers were " in finding["advice"]


def test_a_small_gallery_is_examined_without_searches(service: Service) -> None:
    gallery = make_gallery(service)
    rows, names = people(3, 4, seed=5)
    gallery.add({"m": rows}, names)
    report = examine(service)
    assert report["strangers_named"] is None
    assert "people with a name" in report["unmeasured_reason"]
    assert report["findings"] == []


def test_an_empty_gallery_has_no_findings(service: Service) -> None:
    make_gallery(service)
    report = examine(service)
    assert (report["faces"], report["findings"], report["counts"]["duplicate"]) == (0, [], 0)


def test_without_an_examination_there_is_no_report(service: Service) -> None:
    make_gallery(service, calibrated=False)
    assert service.client.get(f"{BASE}/findings").status_code == 404
    assert service.client.post("/v1/collections/nobody:examine").status_code == 404
    assert service.client.get(f"{BASE}/findings", headers=service.key("reader")).status_code == 403
    job = service.wait(service.client.post(f"{BASE}:examine"))
    assert (job["state"], job["problem"]["code"]) == ("failed", "NotCalibrated")


def test_the_command_prints_findings_with_advice(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    make_faulty_gallery(service)
    monkeypatch.setenv("LIKENESS_URL", service.url)
    monkeypatch.setenv("LIKENESS_KEY", service.client.headers["Authorization"].removeprefix("Bearer "))
    monkeypatch.setenv("COLUMNS", "300")
    printed = CliRunner().invoke(app, ["doctor", "staff", "--limit", "2"])
    assert printed.exit_code == 0, printed.output
    assert "960 faces of 241 people" in printed.output
    assert "more findings are not shown" in printed.output
    assert np.count_nonzero([line.startswith("│") for line in printed.output.splitlines()]) >= 2
