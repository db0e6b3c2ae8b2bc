"""Evaluations over HTTP."""

from typing import Any

import pytest

from app.engine.generations import FIRST
from tests.gallery import enrol
from tests.service import Service

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def stocked(service: Service) -> None:
    service.client.put("/v1/collections/c")
    enrol(service.resources, "c", range(8), shots=5)


def test_an_evaluation_is_a_job_with_a_report(service: Service) -> None:
    stocked(service)
    answer = service.client.post("/v1/evaluations", json={"collection": "c", "draws": 2})
    started = answer.json()
    job = service.wait(answer)
    assert job["state"] == "succeeded", job["problem"]
    assert 0 < job["result"]["report"]["mean"]["map"] <= 1
    shown = service.client.get(f"/v1/evaluations/{started['evaluation']}").json()
    assert (shown["report"], shown["state"], shown["job"]) == (job["result"]["report"], "succeeded", job["id"])
    assert shown["request"]["model"] == FIRST  # what champion meant when it was asked
    listed = service.client.get("/v1/evaluations?collection=c").json()["evaluations"]
    assert [e["id"] for e in listed] == [started["evaluation"]]
    assert service.client.get("/v1/evaluations?collection=d").json()["evaluations"] == []


@on_sqlite
def test_what_a_look_can_tell_is_refused_at_once(service: Service) -> None:
    stocked(service)

    def refused(**body: Any) -> tuple[int, str]:
        answer = service.client.post("/v1/evaluations", json={"collection": "c"} | body)
        return answer.status_code, answer.json()["code"]

    assert refused(collection="none") == (404, "ResourceNotFound")
    assert refused(model="none") == (404, "ResourceNotFound")
    assert refused(model="previous") == (404, "ResourceNotFound")
    assert refused(model=FIRST, task="age") == (422, "UnknownTask")
    assert refused(model=FIRST, training={"method": "l2"}) == (422, "InvalidParameter")
    assert refused(training={"method": "magic"}) == (422, "UnknownComponent")
    assert refused(training={"method": "wpca", "descriptor": "magic"}) == (422, "UnknownComponent")
    assert refused(protocol="labels", training={"method": "l2"}) == (422, "InvalidParameter")
    assert refused(files=[{"name": "../etc", "text": ""}]) == (422, "InvalidParameter")
    assert service.client.get("/v1/evaluations/none").status_code == 404


@on_sqlite
def test_an_evaluation_is_for_administrators_of_the_collection(service: Service) -> None:
    stocked(service)
    body = {"collection": "c"}
    for key in (service.key("operator"), service.key("admin", "other")):
        assert service.client.post("/v1/evaluations", json=body, headers=key).status_code == 403
    started = service.client.post("/v1/evaluations", json=body).json()["evaluation"]
    path = f"/v1/evaluations/{started}"
    assert service.client.get(path, headers=service.key("operator", "other")).status_code == 403
    assert service.client.get("/v1/evaluations", headers=service.key("operator", "other")).json()["evaluations"] == []
