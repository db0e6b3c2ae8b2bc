"""The gate: a candidate is measured on the collection's own people before it may serve."""

from collections.abc import Iterable
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from app.db.session import writing
from tests.flows.test_training import STRONG, face_ids, train, upload
from tests.gallery import enrol
from tests.rows import make_model
from tests.service import Service

BASE = "/v1/collections/c/deployments/identity"
PEOPLE, SHOTS = 40, 3
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def store_model(service: Service, name: str, dim: int) -> str:
    """Store a model without a report: a random projection of LBP, which is worse the fewer dimensions it has."""
    with writing(service.resources.database) as session:
        service.resources.models.keep(session, make_model(name, dim=dim))
    return name


def enrol_people(service: Service, name: str, people: Iterable[int]) -> None:
    enrol(service.resources, name, people, shots=SHOTS, strength=STRONG)


def publish(service: Service, model: str, **more: Any) -> dict[str, Any]:
    return service.wait(service.client.post(f"{BASE}:publish", json={"model": model, **more}), 120)


def compare(service: Service, *models: str) -> dict[str, Any]:
    return service.wait(service.client.post(f"{BASE}:compare", json={"models": list(models)}), 120)


def read_champion(service: Service) -> str:
    return str(service.client.get(BASE).json()["champion"])


def expect_failure(job: dict[str, Any], code: str) -> str:
    assert (job["state"], job["problem"]["code"]) == ("failed", code), job
    return str(job["problem"]["detail"])


def test_a_worse_model_without_a_report_is_refused_and_an_override_is_recorded(service: Service) -> None:
    enrol_people(service, "c", range(PEOPLE))
    job = publish(service, store_model(service, "harmful", dim=1))
    assert "1-call@1" in expect_failure(job, "GateRefused")
    assert read_champion(service) == "lbp-l2"
    measured = job["problem"]["measured"]["identity"]
    assert (measured["people"], measured["measured_on"]["unseen_by_both"]) == (PEOPLE, True)
    assert measured["difference"]["mAP"]["high"] < 0
    assert publish(service, "harmful", override=True, reason="to have it on record")["state"] == "succeeded"
    [entry] = service.client.get(BASE).json()["history"]
    assert (entry["overridden"], entry["reason"]) == (True, "to have it on record")
    assert entry["verdict"]["measured"]["identity"]["difference"] == measured["difference"]
    job = publish(service, store_model(service, "wider", dim=64))
    assert job["state"] == "succeeded", job["problem"]
    assert job["result"]["verdict"]["compared_with"] == {"identity": "harmful"}
    expect_failure(publish(service, store_model(service, "narrow", dim=2)), "GateRefused")
    assert service.client.post(f"{BASE}:publish", json={"model": "harmful"}).status_code == 200, "it served here before"


@on_sqlite
def test_a_model_of_another_collection_is_measured_on_all_people(service: Service) -> None:
    enrol_people(service, "c", range(PEOPLE))
    enrol_people(service, "d", range(100, 120))
    options = {"dim": 32, "options": {"steps": 60, "start": "pca"}}
    answer = service.client.post("/v1/trainings", json={"collection": "d", "method": "ldml", **options})
    model = service.wait(answer, 120)["result"]["model"]
    job = compare(service, "champion", model)
    assert job["state"] == "succeeded", job["problem"]
    assert job["result"]["measured_on"]["unseen_people"] == PEOPLE
    assert [m["measured_as"] for m in job["result"]["models"]] == ["lbp-l2", model]
    published = publish(service, model)
    assert (published["state"] == "succeeded") == job["result"]["gate"]["passed"]
    if not job["result"]["gate"]["passed"]:
        publish(service, model, override=True, reason="to publish the built-in model over it")
    back = compare(service, model, "lbp-l2")["result"]
    assert back["difference"]["mAP"]["value"] == pytest.approx(-job["result"]["difference"]["mAP"]["value"], abs=1e-9)


@on_sqlite
def test_a_model_of_this_collection_is_measured_through_its_holdout_model(service: Service) -> None:
    enrol_people(service, "c", range(PEOPLE))
    body = {"method": "wpca", "dim": 32, "holdout": 0.5}
    model = service.wait(train(service, **body), 120)["result"]["model"]
    measured = compare(service, "champion", model)["result"]
    assert measured["models"][1]["measured_as"] == f"{model}-held-out"
    held_out = service.client.get(f"/v1/models/{model}").json()["report"]["held_out_people"]
    assert measured["measured_on"]["unseen_people"] == held_out < PEOPLE
    assert measured["measured_on"]["unseen_by_both"]
    everybody = service.wait(train(service, **body | {"holdout": 0}), 120)["result"]["model"]
    detail = expect_failure(publish(service, everybody), "NotMeasured")
    assert f"{everybody} has learned from {PEOPLE} of them, which leaves 0" in detail
    enrol_people(service, "c", range(200, 212))
    newcomers = compare(service, "lbp-l2", everybody)["result"]
    assert (newcomers["measured_on"]["unseen_people"], newcomers["measured_on"]["unseen_by_both"]) == (12, True)
    [first, *_] = face_ids(service, "p3")
    assert service.client.delete(f"/v1/collections/c/faces/{first}").status_code in (200, 204)
    # after an erasure, a person who was added later may be the one who was erased
    after_erasure = compare(service, "lbp-l2", everybody)["result"]
    assert (after_erasure["measured_on"]["unseen_people"], after_erasure["measured_on"]["unseen_by_both"]) == (0, False)
    assert after_erasure["gate"] is None
    expect_failure(publish(service, everybody), "NotMeasured")


@on_sqlite
def test_a_gallery_with_labels_and_no_names_is_enough_for_the_gate(service: Service) -> None:
    faces = enrol(service.resources, "c", range(30), shots=3, named=False)
    store_model(service, "harmful", dim=1)
    detail = expect_failure(publish(service, "harmful"), "NotMeasured")
    assert "0 people of c" in detail
    assert "20 labelled pairs of each kind: there are 0 the same and 0 not" in detail
    names = [f.face_id for f in faces]
    same = [(names[3 * i], names[3 * i + 1], True) for i in range(30)]
    other = [(names[3 * i], names[(3 * i + 3) % 90], False) for i in range(30)]
    for number, (a, b, is_same) in enumerate(same + other):
        label = {"face_a": a, "face_b": b, "same": is_same, "by": "ann" if number % 2 else "bob"}
        assert service.client.post("/v1/labels", json={"labels": [label]}).json()["accepted"] == 1
    job = publish(service, "harmful")
    expect_failure(job, "GateRefused")
    measured = job["problem"]["measured"]["identity"]
    assert (measured["people"], measured["pairs"]) == (30, 60)
    assert set(measured["labellers"]) == {"ann", "bob"}
    assert measured["difference"]["labelled_pairs"]["value"] < 0
    assert measured["difference"]["mAP"]["high"] < 0


@on_sqlite
def test_the_gate_states_what_is_missing_when_it_cannot_measure(service: Service) -> None:
    service.client.put("/v1/collections/c")
    store_model(service, "m1", dim=8)
    job = publish(service, "m1")
    assert job["state"] == "succeeded", "an empty collection takes any model"
    assert "0 faces" in job["result"]["verdict"]["measured"]["identity"]["unmeasured"]
    upload(service, "c", range(6), SHOTS)
    detail = expect_failure(publish(service, store_model(service, "m2", dim=8)), "NotMeasured")
    assert "6 people of c have what a search needs (two photos or more); 10 are needed" in detail
    detail = expect_failure(compare(service, "m1", "lbp-l2"), "NotMeasured")
    assert detail.startswith("m1 and lbp-l2 cannot be compared: 6")
    upload(service, "c", range(6, 12), SHOTS)
    detail = expect_failure(publish(service, store_model(service, "m3", dim=9)), "NotMeasured")
    assert "with 12 people a loss of" in detail


@on_sqlite
def test_one_request_compares_two_models(service: Service) -> None:
    enrol_people(service, "c", range(30))
    store_model(service, "m1", dim=2)
    result = compare(service, "champion", "m1")["result"]
    first, second = result["models"]
    assert (first["model"], second["model"]) == ("lbp-l2", "m1")
    for name in ("mAP", "1-call@1", "1-call@10", "named_rightly", "strangers_named"):
        assert 0 <= first[name]["low"] <= first[name]["value"] <= first[name]["high"] <= 1
        difference = result["difference"][name]
        assert difference["value"] == pytest.approx(second[name]["value"] - first[name]["value"], abs=1e-9)
        assert difference["low"] <= difference["value"] <= difference["high"]
        assert 0 < difference["p"] <= 1
    assert result["measured_on"]["people"] == result["measured_on"]["people_measured"] == 30
    assert not result["gate"]["passed"]
    assert read_champion(service) == "lbp-l2", "nothing moved"
    key = service.client.headers["Authorization"].removeprefix("Bearer ")
    printed = CliRunner().invoke(
        app, ["compare", "c", "champion", "m1", "--url", service.url], env={"LIKENESS_KEY": key, "COLUMNS": "200"}
    )
    assert printed.exit_code == 0, printed.output
    assert "30 people of c, unknown to both models" in printed.output
    assert f"{100 * second['1-call@1']['value']:.1f} (" in printed.output
    assert "m1 in place of lbp-l2: the gate" in printed.output
    for models, status, code in (
        (["champion", "lbp-l2"], 422, "InvalidParameter"),
        (["champion"], 422, "InvalidParameter"),
        (["champion", "none"], 404, "ResourceNotFound"),
        (["champion", "challenger"], 404, "ResourceNotFound"),
    ):
        answer = service.client.post(f"{BASE}:compare", json={"models": models})
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    body = {"models": ["champion", "m1"]}
    assert service.client.post(BASE.replace("/c/", "/none/") + ":compare", json=body).status_code == 404
    assert service.client.post(BASE.replace("identity", "age") + ":compare", json=body).json()["code"] == "TaskDisabled"
    assert service.client.post(f"{BASE}:compare", json=body, headers=service.key("operator")).status_code == 403
