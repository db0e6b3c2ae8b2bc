"""From labels to a new champion, over HTTP and without test doubles, while another client searches."""

from typing import Any

import numpy as np
import pytest

from ml import images
from ml.synthetic_faces import draw, person
from tests.flows.continuous_search import ContinuousSearch
from tests.rounding import rounding
from tests.service import Service

PEOPLE, SHOTS = 16, 4
MANY = 30  # half of them held out are people enough to judge by
BASE = "/v1/collections/c/deployments/identity"
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
Answer = list[tuple[str, float]]


def photo(who: int, shot: int) -> bytes:
    return images.encode_png(draw(person(who), shot))


def upload(service: Service, people: int = PEOPLE) -> dict[str, list[str]]:
    service.client.put("/v1/collections/c")
    faces: dict[str, list[str]] = {}
    for who in range(people):
        for shot in range(SHOTS):
            told = {"subject": f"p{who}", "aligned": "true"}
            answer = service.client.post("/v1/collections/c/faces", files={"file": photo(who, shot)}, data=told)
            assert answer.status_code in (200, 201), answer.text
            faces.setdefault(f"p{who}", []).append(answer.json()["face_records"][0]["face_id"])
    service.wait_for_indexes()
    return faces


def ask(service: Service) -> Answer:
    answer = service.client.post("/v1/collections/c/search?aligned=true&limit=20", files={"file": photo(3, 99)})
    assert answer.status_code == 200, answer.text
    return [(m["face_id"], m["distance"]) for m in answer.json()["faces"][0]["matches"]]


def alike(one: Answer, other: Answer) -> bool:
    """The same faces as far away, up to rounding: a photo is embedded alone or, where searches wait, with others."""
    (faces, apart), (same_faces, same) = (zip(*answer, strict=True) for answer in (one, other))
    near = 4 * rounding(9860)  # numbers of an LBP; (z + e)^2 is off by twice e, in either of two embeddings
    return faces == same_faces and np.allclose(apart, same, rtol=near, atol=near)


def train(service: Service, **asked: Any) -> str:
    body = {"collection": "c", "method": "ldml", "dim": 8, "options": {"steps": 80}} | asked
    job = service.wait(service.client.post("/v1/trainings", json=body), 120)
    assert job["state"] == "succeeded", job["problem"]
    return str(job["result"]["model"])


def label(service: Service, faces: dict[str, list[str]]) -> None:
    names = sorted(faces)
    said = [
        {"face_a": faces[a][0], "face_b": other, "task": "identity", "same": same}
        for a, b in zip(names, names[1:] + names[:1], strict=True)
        for other, same in ((faces[a][1], True), (faces[b][0], False))
    ]
    assert service.client.post("/v1/labels", json={"labels": said}).json()["accepted"] == len(said)


def test_searches_succeed_while_a_model_is_published_and_rolled_back(service: Service) -> None:
    label(service, upload(service))
    before, first = ask(service), service.client.get(BASE).json()["champion"]
    with ContinuousSearch(service.client, photo(5, 77)) as searcher:
        model = train(service, holdout=0.25)
        version = service.client.get(BASE).headers["ETag"]
        body = {"model": model, "override": True, "reason": "a test of the swap, not of the metric"}
        job = service.wait(service.client.post(f"{BASE}:publish", json=body, headers={"If-Match": version}))
        assert job["state"] == "succeeded", job["problem"]
        after = ask(service)
        assert not alike(after, before)
        answer = service.client.post(f"{BASE}:rollback")
        assert (answer.status_code, answer.json()["champion"]) == (200, first)
        assert alike(ask(service), before)
        assert service.client.post(f"{BASE}:rollback").json()["champion"] == model
        assert alike(ask(service), after)
    assert not searcher.failures
    assert {first, model} <= set(searcher.models)
    stale = service.client.post(f"{BASE}:publish", json={"model": first}, headers={"If-Match": version})
    assert (stale.status_code, stale.json()["code"]) == (412, "PreconditionFailed")


@on_sqlite
def test_a_face_enrolled_after_a_publication_is_found_after_its_rollback(service: Service) -> None:
    upload(service)
    model = train(service, method="wpca", options={}, holdout=0)
    job = service.wait(service.client.post(f"{BASE}:publish", json={"model": model}))
    assert (job["state"], job["problem"]["code"]) == ("failed", "NotMeasured"), "it has learned from everybody"
    body = {"model": model, "override": True, "reason": "a test of the swap, not of the metric"}
    job = service.wait(service.client.post(f"{BASE}:publish", json=body))
    assert not job["result"]["verdict"]["passed"]
    new = service.client.post(
        "/v1/collections/c/faces", files={"file": photo(3, 99)}, data={"subject": "late", "aligned": "true"}
    )
    assert service.client.post(f"{BASE}:rollback").status_code == 200
    [face] = new.json()["face_records"]
    nearest, distance = ask(service)[0]
    assert nearest == face["face_id"]
    assert distance == pytest.approx(0, abs=1e-3), "it was described in another batch than the query"


@on_sqlite
def test_the_gate_refuses_a_worse_model_unless_an_administrator_overrides_it(service: Service) -> None:
    upload(service, MANY)
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
