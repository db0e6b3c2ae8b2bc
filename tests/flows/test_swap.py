"""The way from labels to a new champion, over HTTP and without test doubles, while another client searches."""

from typing import Any

import numpy as np
import pytest

from tests.flows.continuous_search import ContinuousSearch
from tests.gallery import draw_photo, enrol
from tests.rounding import rounding
from tests.service import Service

PEOPLE, SHOTS = 16, 4
PEOPLE_FOR_THE_GATE = 30  # half of them held out are people enough to judge by
BASE = "/v1/collections/c/deployments/identity"
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
Answer = list[tuple[str, float]]


def upload(service: Service, people: int = PEOPLE) -> dict[str, list[str]]:
    service.client.put("/v1/collections/c")
    faces: dict[str, list[str]] = {}
    for who in range(people):
        for shot in range(SHOTS):
            fields = {"subject": f"p{who}", "aligned": "true"}
            answer = service.client.post("/v1/collections/c/faces", files={"file": draw_photo(who, shot)}, data=fields)
            assert answer.status_code in (200, 201), answer.text
            faces.setdefault(f"p{who}", []).append(answer.json()["face_records"][0]["face_id"])
    service.wait_for_indexes()
    return faces


def search(service: Service) -> Answer:
    answer = service.client.post("/v1/collections/c/search?aligned=true&limit=20", files={"file": draw_photo(3, 99)})
    assert answer.status_code == 200, answer.text
    return [(m["face_id"], m["distance"]) for m in answer.json()["faces"][0]["matches"]]


def are_equal(one: Answer, other: Answer) -> bool:
    """The same faces as far away, up to rounding: a photo is embedded alone or, where searches wait, with others."""
    (faces, distances), (same_faces, same_distances) = (zip(*answer, strict=True) for answer in (one, other))
    tolerance = 4 * rounding(9860)  # numbers of an LBP; (z + e)^2 is off by twice e, in either of two embeddings
    return faces == same_faces and np.allclose(distances, same_distances, rtol=tolerance, atol=tolerance)


def train(service: Service, **fields: Any) -> str:
    body = {"collection": "c", "method": "ldml", "dim": 8, "options": {"steps": 80}} | fields
    job = service.wait(service.client.post("/v1/trainings", json=body), 120)
    assert job["state"] == "succeeded", job["problem"]
    return str(job["result"]["model"])


def send_labels(service: Service, faces: dict[str, list[str]]) -> None:
    names = sorted(faces)
    labels = [
        {"face_a": faces[a][0], "face_b": other, "task": "identity", "same": same}
        for a, b in zip(names, names[1:] + names[:1], strict=True)
        for other, same in ((faces[a][1], True), (faces[b][0], False))
    ]
    assert service.client.post("/v1/labels", json={"labels": labels}).json()["accepted"] == len(labels)


def test_searches_succeed_while_a_model_is_published_and_rolled_back(service: Service) -> None:
    send_labels(service, upload(service))
    before, first = search(service), service.client.get(BASE).json()["champion"]
    with ContinuousSearch(service.client, draw_photo(5, 77)) as searcher:
        model = train(service, holdout=0.25)
        version = service.client.get(BASE).headers["ETag"]
        body = {"model": model, "override": True, "reason": "a test of the swap, not of the metric"}
        job = service.wait(service.client.post(f"{BASE}:publish", json=body, headers={"If-Match": version}))
        assert job["state"] == "succeeded", job["problem"]
        after = search(service)
        assert not are_equal(after, before)
        answer = service.client.post(f"{BASE}:rollback")
        assert (answer.status_code, answer.json()["champion"]) == (200, first)
        assert are_equal(search(service), before)
        assert service.client.post(f"{BASE}:rollback").json()["champion"] == model
        assert are_equal(search(service), after)
    assert not searcher.failures
    assert {first, model} <= set(searcher.models)
    stale = service.client.post(f"{BASE}:publish", json={"model": first}, headers={"If-Match": version})
    assert (stale.status_code, stale.json()["code"]) == (412, "PreconditionFailed")


@on_sqlite
def test_a_face_enrolled_after_a_publication_is_found_after_its_rollback(service: Service) -> None:
    enrol(service.resources, "c", range(PEOPLE), shots=SHOTS)
    model = train(service, method="wpca", options={}, holdout=0)
    job = service.wait(service.client.post(f"{BASE}:publish", json={"model": model}))
    assert (job["state"], job["problem"]["code"]) == ("failed", "NotMeasured"), "it has learned from everybody"
    body = {"model": model, "override": True, "reason": "a test of the swap, not of the metric"}
    job = service.wait(service.client.post(f"{BASE}:publish", json=body))
    assert not job["result"]["verdict"]["passed"]
    new = service.client.post(
        "/v1/collections/c/faces", files={"file": draw_photo(3, 99)}, data={"subject": "late", "aligned": "true"}
    )
    assert service.client.post(f"{BASE}:rollback").status_code == 200
    [face] = new.json()["face_records"]
    nearest, distance = search(service)[0]
    assert nearest == face["face_id"]
    assert distance == pytest.approx(0, abs=1e-3), "it was described in another batch than the query"


@on_sqlite
def test_the_gate_refuses_a_worse_model_unless_an_administrator_overrides_it(service: Service) -> None:
    upload(service, PEOPLE_FOR_THE_GATE)
    good = train(service, method="wpca", dim=16, options={}, holdout=0.5)
    forced = {"override": True, "reason": "to have something to lose"}
    service.wait(service.client.post(f"{BASE}:publish", json={"model": good} | forced))
    worse = train(service, method="wpca", dim=1, options={}, holdout=0.5)
    job = service.wait(service.client.post(f"{BASE}:publish", json={"model": worse}))
    assert (job["state"], job["problem"]["code"]) == ("failed", "GateRefused")
    assert any("1-call@1 " in reason for reason in job["problem"]["reasons"])
    assert service.client.get(BASE).json()["champion"] == good
    refused = service.client.post(f"{BASE}:publish", json={"model": worse, "override": True})
    assert refused.json()["code"] == "ReasonRequired"
    job = service.wait(service.client.post(f"{BASE}:publish", json={"model": worse} | forced))
    assert job["state"] == "succeeded"
    shown = service.client.get(BASE).json()
    assert (shown["champion"], shown["history"][-1]["overridden"]) == (worse, True)
    assert shown["history"][-1]["verdict"]["reasons"]
