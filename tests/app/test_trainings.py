"""Trainings over HTTP: checked before a job starts, and stored with their job."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.learning.component_options import check_options
from tests.databases import remove_test_data
from tests.gallery import enrol
from tests.service import Service


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


def start(service: Service, **fields: Any) -> Any:
    return service.client.post("/v1/trainings", json={"collection": "c"} | fields)


INVALID_TRAININGS: list[tuple[dict[str, Any], int, str]] = [
    ({"method": "magic"}, 422, "wpca"),
    ({"descriptor": "magic"}, 422, "lbp"),
    ({"descriptor": "onnx"}, 422, "lbp"),
    ({"descriptor": "lbp", "descriptors": ["lbp"]}, 422, "not both"),
    ({"method": "wpca", "options": {"whitening": True}}, 422, "whiten"),
    ({"method": "wpca", "options": {"whiten": "perhaps"}}, 422, "whiten"),
    ({"method": "wpca", "options": {"sample": -1}}, 422, "sample"),
    ({"method": "wpca", "options": {"device": "cuda"}}, 422, "device"),
    ({"method": "clml", "options": {"averaging": 1.5}}, 422, "less than or equal to 1"),
    ({"method": "clml", "options": {"steps": 0}}, 422, "greater than or equal to 1"),
    ({"method": "ldml", "options": {"map": {}}}, 422, "map"),
    ({"method": "ldml", "options": {"stay": 0.1, "proximal_weight": 0.1}}, 422, "earlier name"),
    ({"method": "wpca", "dim": 0}, 422, "dim"),
    ({"method": "wpca", "dim": 4097}, 422, "dim"),
    ({"method": "l2", "dim": 8}, 422, "dim"),
    ({"holdout": 1.5}, 422, "holdout"),
    ({"holdout": False}, 422, "holdout"),
    ({"collection": "nowhere"}, 404, "nowhere"),
    ({"sources": [{"from": "subjects", "collection": "nowhere"}]}, 404, "nowhere"),
    ({"sources": [{"from": "rumours"}]}, 422, "from"),
    ({"sources": [{"task": "height", "from": "labels"}]}, 422, "identity"),
    ({"sources": [{"task": "age", "from": "metadata.age", "tolerance": 5}]}, 422, "off"),
    ({"sources": [{"from": "subjects", "tolerance": 5}]}, 422, "tolerance"),
    ({"sources": [{"from": "subjects"}, {"from": "metadata.name"}]}, 422, "all its sources"),
    ({"sources": [{"from": "subjects"}, {"from": "subjects"}]}, 422, "twice"),
    ({"descriptor": {"name": "lbp", "options": {"margins": 2}}}, 422, "margin"),
    ({"descriptors": [{"name": "fisher", "options": {"vocabulary": "/etc/passwd"}}]}, 422, "vocabulary"),
    ({"descriptor": {"name": "lbp", "options": {"cell": 1000}}}, 422, "cell"),
    ({"descriptor": {"options": {}}}, 422, "name"),
    ({"index": {"name": "flat"}}, 422, "two_stage"),
    ({"index": {"name": "two_stage", "options": {"bits": 3}}}, 422, "bits"),
    ({"index": {"name": "two_stage", "options": {"target_recall": 0.1}}}, 422, "greater than or equal to 0.5"),
    ({"index": {"name": "two_stage", "options": {"folder": "/etc"}}}, 422, "folder"),
    ({"start_from": "m-none"}, 404, "m-none"),
    ({"start_from": "lbp-l2", "method": "wpca"}, 422, "ldml"),
    ({"start_from": "lbp-l2", "method": "subsml"}, 422, "stiefel"),
    ({"start_from": "lbp-l2", "descriptor": "lbp"}, 422, "leave out"),
    ({"start_from": "serving", "dim": 8}, 422, "leave out"),
]


def test_an_invalid_training_is_refused_before_a_job_starts(service: Service) -> None:
    service.client.put("/v1/collections/c")
    for fields, status, reason in INVALID_TRAININGS:
        answer = start(service, **fields)
        assert answer.status_code == status, (fields, answer.text)
        assert reason in answer.text, fields
    assert service.client.get("/v1/trainings").json()["trainings"] == []


def test_a_training_stores_its_request_its_job_and_its_report(service: Service) -> None:
    enrol(service.resources, "c", range(8), shots=2)
    answer = start(service, method="wpca", dim=4, seed=3, index={"name": "two_stage", "options": {"bits": 1}})
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    ended = service.wait(answer)
    assert ended["state"] == "succeeded", ended
    assert ended["progress"]["done"] == ended["progress"]["total"]
    training = service.client.get(f"/v1/trainings/{job['training']}").json()
    assert training["model"] == ended["result"]["model"]
    assert training["report"] == ended["result"]["report"]
    assert training["request"]["options"]["dim"] == 4
    assert training["request"]["options"]["seed"] == 3
    index = {"name": "two_stage", "options": {"bits": 1, "rows": "memory", "target_recall": 0.99}}
    assert training["request"]["index"] == index
    assert service.client.get(f"/v1/models/{training['model']}").json()["manifest"]["index"] == index
    assert training["request"]["descriptors"] == [{"name": "lbp", "options": {}}]
    assert training["state"] == "succeeded"
    listed = service.client.get("/v1/trainings", params={"collection": "c"}).json()["trainings"]
    assert [t["id"] for t in listed] == [training["id"]]
    assert service.client.get("/v1/trainings", params={"collection": "d"}).json()["trainings"] == []


def test_a_bound_key_can_see_and_start_only_trainings_of_its_collections(service: Service) -> None:
    enrol(service.resources, "c", range(8), shots=2)
    service.client.put("/v1/collections/d")
    training = start(service, method="wpca", dim=4).json()["training"]
    other, own = service.key("admin", "d"), service.key("admin", "c")
    assert service.client.get(f"/v1/trainings/{training}", headers=other).status_code == 404
    assert service.client.get("/v1/trainings", headers=other).json()["trainings"] == []
    assert len(service.client.get("/v1/trainings", headers=own).json()["trainings"]) == 1
    sources = [{"from": "subjects"}, {"from": "subjects", "collection": "d"}]
    body = {"collection": "c", "sources": sources}
    assert service.client.post("/v1/trainings", json=body, headers=own).status_code == 404
    assert service.client.post("/v1/trainings", json=body, headers=service.key("operator")).status_code == 403
    assert service.client.get("/v1/trainings/nothing").status_code == 404
    assert service.client.get("/v1/trainings/%00").status_code == 422


def test_too_few_labels_fail_the_job_and_say_how_many_are_missing(service: Service) -> None:
    faces = enrol(service.resources, "c", range(6), shots=1, named=False)
    label = {"face_a": faces[0].face_id, "face_b": faces[1].face_id, "same": True}
    service.client.post("/v1/labels", json={"labels": [label]})
    ended = service.wait(start(service, method="ldml", dim=4))
    assert ended["state"] == "failed"
    assert (ended["problem"]["code"], ended["problem"]["missing"]) == ("TooFewLabels", 9)
    training = service.client.get("/v1/trainings").json()["trainings"][0]
    assert training["problem"]["code"] == "TooFewLabels"


def test_a_training_can_start_from_a_learned_model_but_not_from_the_built_in_one(service: Service) -> None:
    enrol(service.resources, "c", range(12), shots=3)
    first = service.wait(start(service, method="wpca", dim=6))
    model = first["result"]["model"]
    job = service.wait(start(service, method="ldml", start_from=model, options={"steps": 20}))
    assert job["state"] == "succeeded", job["problem"]
    request = service.client.get(f"/v1/trainings/{job['result']['training']}").json()["request"]
    assert (request["start_from"], request["options"]["dim"]) == (model, 6)
    anew = service.wait(start(service, method="ldml", start_from="serving"))
    assert anew["problem"]["code"] == "CannotGoOn"


@pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("method", "options"),
    [("stml", {"dim": 6, "pairs": 200, "batch": 16}), ("sml", {"batch": 16}), ("stiefel", {"dim": 6})],
)
def test_a_method_can_start_from_a_model_of_its_own_family_only(
    service: Service, method: str, options: dict[str, Any]
) -> None:
    enrol(service.resources, "c", range(12), shots=3)
    quick, dim = {name: value for name, value in options.items() if name != "dim"} | {"steps": 20}, options.get("dim")
    first = service.wait(start(service, method=method, options=quick, **({"dim": dim} if dim else {})))
    model = first["result"]["model"]
    on = service.wait(start(service, method=method, start_from=model, options=quick))
    assert on["state"] == "succeeded", on["problem"]
    request = service.client.get(f"/v1/trainings/{on['result']['training']}").json()["request"]
    assert (request["start_from"], request["options"].get("dim")) == (model, dim)
    other = service.wait(start(service, method="pcca", start_from=model))
    assert other["problem"]["code"] == "CannotGoOn"


def test_an_option_is_accepted_under_its_earlier_name() -> None:
    options = check_options("embedders", "ldml", {"stay": 0.03, "needed": 4})
    assert (options["proximal_weight"], options["min_pairs"]) == (0.03, 4)


def test_a_training_can_set_the_options_of_a_descriptor(service: Service) -> None:
    enrol(service.resources, "c", range(8), shots=2)
    cut = {"name": "lbp", "options": {"margin": 2, "mirrored": True}}
    job = service.wait(start(service, method="wpca", dim=4, descriptors=[cut, "cslbp"]))
    assert job["state"] == "succeeded", job["problem"]
    made = service.client.get(f"/v1/models/{job['result']['model']}").json()["descriptors"]
    assert made == [cut, {"name": "cslbp", "options": {}}]
