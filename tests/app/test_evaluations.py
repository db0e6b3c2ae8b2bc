"""Evaluations over HTTP."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event, inspect

from app.db.session import reading, writing
from app.db.tables import Evaluation
from app.evaluations.schemas import MAX_TEXT_BYTES
from app.evaluations.service import list_evaluations
from app.storage.model_cache import LBP_MODEL
from tests.databases import remove_test_data
from tests.gallery import enrol
from tests.service import Service

on_sqlite = pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


def stocked(service: Service) -> None:
    service.client.put("/v1/collections/c")
    enrol(service.resources, "c", range(8), shots=5)


def test_an_evaluation_runs_as_a_job_and_keeps_its_report(service: Service) -> None:
    stocked(service)
    answer = service.client.post("/v1/evaluations", json={"collection": "c", "draws": 2})
    started = answer.json()
    job = service.wait(answer)
    assert job["state"] == "succeeded", job["problem"]
    assert 0 < job["result"]["report"]["mean"]["map"] <= 1
    shown = service.client.get(f"/v1/evaluations/{started['evaluation']}").json()
    assert (shown["report"], shown["state"], shown["job"]) == (job["result"]["report"], "succeeded", job["id"])
    assert shown["request"]["model"] == LBP_MODEL  # what champion meant when it was asked
    listed = service.client.get("/v1/evaluations?collection=c").json()["evaluations"]
    assert [e["id"] for e in listed] == [started["evaluation"]]
    assert service.client.get("/v1/evaluations?collection=d").json()["evaluations"] == []


@on_sqlite
def test_an_invalid_evaluation_is_refused_before_a_job_starts(service: Service) -> None:
    stocked(service)

    def refused(**body: Any) -> tuple[int, str]:
        answer = service.client.post("/v1/evaluations", json={"collection": "c"} | body)
        return answer.status_code, answer.json()["code"]

    assert refused(collection="none") == (404, "ResourceNotFound")
    assert refused(model="none") == (404, "ResourceNotFound")
    assert refused(model="previous") == (404, "ResourceNotFound")
    assert refused(model=LBP_MODEL, task="age") == (422, "UnknownTask")
    assert refused(model=LBP_MODEL, training={"method": "l2"}) == (422, "InvalidParameter")
    assert refused(training={"method": "magic"}) == (422, "UnknownComponent")
    assert refused(training={"method": "wpca", "descriptor": "magic"}) == (422, "UnknownComponent")
    assert refused(protocol="labels", training={"method": "l2"}) == (422, "InvalidParameter")
    assert refused(files=[{"name": "../etc", "text": ""}]) == (422, "InvalidParameter")
    assert refused(protocol="verification") == (422, "InvalidParameter")
    assert refused(protocol="openset", files=[{"name": "q.txt", "text": ""}]) == (422, "InvalidParameter")
    assert refused(setting="restricted") == (422, "InvalidParameter")
    assert refused(protocol="labels", against="x") == (422, "InvalidParameter")
    assert refused(against="none") == (404, "ResourceNotFound")
    assert service.client.get("/v1/evaluations/none").status_code == 404


@on_sqlite
def test_the_texts_of_all_protocol_files_have_a_limit_together(service: Service) -> None:
    service.client.put("/v1/collections/c")
    half = {"name": "q.txt", "text": "é" * (MAX_TEXT_BYTES // 4)}
    body = {"collection": "c", "files": [half, half]}
    assert service.client.post("/v1/evaluations", json=body).status_code == 202
    body["files"] = [half, half | {"text": half["text"] + "\n"}]
    answer = service.client.post("/v1/evaluations", json=body)
    assert answer.status_code == 422
    assert "8,388,608 are allowed" in answer.text


@on_sqlite
def test_an_evaluation_can_be_compared_with_an_earlier_one_of_the_same_protocol(service: Service) -> None:
    stocked(service)
    first = service.client.post("/v1/evaluations", json={"collection": "c", "draws": 2})
    assert service.wait(first)["state"] == "succeeded"
    body = {"collection": "c", "draws": 2, "against": first.json()["evaluation"]}
    job = service.wait(service.client.post("/v1/evaluations", json=body))
    assert job["state"] == "succeeded", job["problem"]
    comparison = job["result"]["report"]["against"]
    assert comparison["evaluation"] == body["against"]
    assert comparison["difference"]["map"] == {"value": 0, "low": 0, "high": 0, "p": 1, "groups": 8}
    assert "outcomes" not in service.client.get(f"/v1/evaluations/{body['against']}").json()["report"]
    other = service.client.post("/v1/evaluations", json=body | {"protocol": "holdout"})
    assert (other.status_code, other.json()["code"]) == (422, "InvalidParameter")


@on_sqlite
def test_only_administrators_of_the_collection_can_evaluate(service: Service) -> None:
    stocked(service)
    body = {"collection": "c"}
    for key, status in ((service.key("operator"), 403), (service.key("admin", "other"), 404)):
        assert service.client.post("/v1/evaluations", json=body, headers=key).status_code == status
    started = service.client.post("/v1/evaluations", json=body).json()["evaluation"]
    path = f"/v1/evaluations/{started}"
    assert service.client.get(path, headers=service.key("operator", "other")).status_code == 404
    assert service.client.get("/v1/evaluations", headers=service.key("operator", "other")).json()["evaluations"] == []


def test_a_list_of_evaluations_does_not_read_the_texts_of_their_files(service: Service) -> None:
    files = [{"name": f"{name}.txt", "text": f"query {name}/{name}.jpg\n"} for name in ("ada", "bob")]
    requests = [
        {"collection": "c", "task": "identity", "protocol": "disjoint", "files": files, "seed": 3},
        {"collection": "c", "task": "identity", "protocol": "retrieval", "files": [], "model": None},
    ]
    with writing(service.resources.database) as session:
        session.add_all([Evaluation(request=request) for request in requests])
    unread: list[set[str]] = []
    event.listen(Evaluation, "load", note := lambda row, _: unread.append(inspect(row).unloaded))
    with reading(service.resources.database) as session:
        listed, token = list_evaluations(session, "c", 10, None)
    event.remove(Evaluation, "load", note)
    assert [row.request for row in listed] == [
        requests[0] | {"files": ["ada.txt", "bob.txt"]}, requests[1],
    ]  # fmt: skip
    assert token is None
    assert unread == [{"request", "report"}] * 2
