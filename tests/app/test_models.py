"""Models over HTTP."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.db.session import writing
from app.storage.model_cache import LBP_MODEL
from tests.databases import remove_test_data
from tests.gallery import enrol
from tests.rows import make_model
from tests.service import Service

on_sqlite = pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


def stocked(service: Service, *models: str) -> None:
    service.client.put("/v1/collections/c")
    enrol(service.resources, "c", range(3), shots=2)
    for name in models:
        with writing(service.resources.database) as session:
            service.resources.models.keep(session, make_model(name), training_id="t", report={"candidate": None})


@on_sqlite
def test_a_model_shows_its_origin_and_its_deployments(service: Service) -> None:
    stocked(service, "m1")
    listed = service.client.get("/v1/models").json()["models"]
    assert [(m["id"], m["method"], m["tasks"]) for m in listed] == [
        (LBP_MODEL, "l2", ["identity"]),
        ("m1", "wpca", ["identity"]),
    ]
    made = service.client.get("/v1/models/m1").json()
    assert (made["training_id"], made["options"]["dim"], made["report"]) == ("t", 8, {"candidate": None})
    assert made["manifest"]["facts"] == {"made": "for a test"}
    assert made["deployed"] == []
    served = service.client.get(f"/v1/models/{LBP_MODEL}").json()["deployed"]
    assert served == [{"collection": "c", "task": "identity", "pointer": "champion"}]
    assert service.client.get("/v1/models/none").status_code == 404


@on_sqlite
def test_a_model_of_an_earlier_version_shows_no_numbers_of_labels(service: Service) -> None:
    """It lists those of all collections."""
    model = replace(make_model("m1"), provenance={"made": "trained", "labels": {"identity": [7, 8]}})
    with writing(service.resources.database) as session:
        service.resources.models.keep(session, model)
    for headers in ({}, service.key("reader")):
        made = service.client.get("/v1/models/m1", headers=headers).json()
        assert made["labels"] == made["manifest"]["facts"]["labels"] == {"identity": {}}


@on_sqlite
def test_a_bound_key_does_not_see_deployments_of_other_collections(service: Service) -> None:
    stocked(service)
    elsewhere = service.key("reader", "other")
    assert service.client.get(f"/v1/models/{LBP_MODEL}", headers=elsewhere).json()["deployed"] == []
    admin = service.key("admin", "other")
    answer = service.client.post(f"/v1/models/{LBP_MODEL}:publish", json={"collection": "c"}, headers=admin)
    assert answer.status_code == 404


def test_a_model_can_be_published_through_its_own_path(service: Service) -> None:
    stocked(service, "m1")
    job = service.wait(service.client.post("/v1/models/m1:publish", json={"collection": "c"}))
    assert job["state"] == "succeeded", job["problem"]
    assert service.client.get("/v1/collections/c/deployments/identity").json()["champion"] == "m1"
    again = service.client.post("/v1/models/m1:publish", json={"collection": "c", "tasks": ["identity"]})
    assert (again.status_code, again.json()) == (200, {"model": "m1", "collection": "c", "tasks": ["identity"]})
    service.client.put("/v1/collections/d").raise_for_status()
    service.wait(service.client.post("/v1/models/m1:publish", json={"collection": "d"}))
    again = service.client.post("/v1/models/m1:publish", json={"collection": "c"})
    assert (again.status_code, again.json()["tasks"]) == (200, ["identity"])


@on_sqlite
def test_a_deployed_model_cannot_be_archived(service: Service) -> None:
    stocked(service, "m1", "m2")
    assert service.client.post("/v1/models/m2:archive").json()["archived_at"] > 0
    assert service.client.post("/v1/models/m2:publish", json={"collection": "c"}).status_code == 409
    service.wait(service.client.post("/v1/models/m1:publish", json={"collection": "c"}))
    for model in ("m1", LBP_MODEL):
        answer = service.client.post(f"/v1/models/{model}:archive")
        assert (answer.status_code, answer.json()["code"]) == (409, "ResourceInUse")
    assert service.client.post("/v1/models/m2:archive", headers=service.key("operator")).status_code == 403
