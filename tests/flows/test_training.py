"""The way from an upload to a candidate model, over HTTP alone."""

import io
import tarfile
import time
from collections.abc import Iterable
from typing import Any

import pytest

from tests.gallery import crops
from tests.service import Service

STRONG = 1.6
LEARN = {"dim": 16, "options": {"steps": 60, "start": "pca", "groups": 16, "others": 16}}


def archive(people: Iterable[int], shots: int) -> bytes:
    """Pack aligned faces of synthetic people, in bad light and turned away, as <person>/<shot>.png."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for who in people:
            for shot in range(shots):
                data = crops(who, who * 1000 + shot, STRONG)["grey"]
                entry = tarfile.TarInfo(f"p{who}/{shot}.png")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def upload(service: Service, name: str, people: Iterable[int], shots: int, role: str = "gallery") -> None:
    service.client.put(f"/v1/collections/{name}")
    answer = service.client.post(
        f"/v1/collections/{name}:import",
        params={"aligned": True, "role": role},
        content=archive(people, shots),
        headers={"content-type": "application/x-tar"},
    )
    assert service.wait(answer)["state"] == "succeeded"


def train(service: Service, **fields: Any) -> Any:
    return service.client.post("/v1/trainings", json={"collection": "c", **fields})


def face_ids(service: Service, subject: str) -> list[str]:
    faces = service.client.get("/v1/collections/c/faces", params={"subject": subject}).json()["faces"]
    return [f["face_id"] for f in faces]


def test_a_training_gives_a_candidate_that_is_compared_with_the_champion(service: Service) -> None:
    upload(service, "c", range(24), shots=4)
    upload(service, "c", range(100, 110), shots=1, role="distractor")
    same = face_ids(service, "p1")
    other = face_ids(service, "p2")
    labels = [
        {"face_a": same[0], "face_b": other[0], "same": False},
        {"face_a": same[0], "face_b": same[1], "same": True},
    ]
    assert service.client.post("/v1/labels", json={"labels": labels}).json()["accepted"] == 2

    answer = train(service, method="ldml", **LEARN)
    waiting = train(service, method="wpca", dim=16)
    training, seen = answer.json()["training"], 0
    until = time.monotonic() + 60
    while True:
        assert time.monotonic() < until, service.client.get(answer.headers["location"]).text
        seen = max(seen, len(service.client.get(f"/v1/trainings/{training}").json()["curve"]))
        second = service.client.get(waiting.headers["location"]).json()["state"]
        if service.client.get(answer.headers["location"]).json()["finished_at"]:
            break
        assert second == "queued", "one after the other"
        time.sleep(0.1)
    assert seen, "the curve is live"
    job = service.wait(answer)
    assert job["state"] == "succeeded", job["problem"]

    report = job["result"]["report"]
    candidate, current = report["candidate"], report["current"]
    assert report["refit"]
    assert report["distractors"] == 10
    assert candidate["queries"] == current["queries"] == 4 * report["held_out_people"]
    assert candidate["gallery"] == current["gallery"]
    assert candidate["mean_average_precision"]["value"] > 2 * candidate["chance_at_10"] / 10
    shown = service.client.get(f"/v1/trainings/{training}").json()
    assert {p["phase"] for p in shown["curve"]} == {"fit", "refit"}
    losses = [p["loss"] for p in shown["curve"] if p["phase"] == "refit"]
    assert losses[-1] < losses[0], "a curve has the first loss of each phase, however short"
    model = service.client.get(f"/v1/models/{job['result']['model']}").json()
    assert model["training_id"] == training
    assert model["options"]["dim"] == 16
    assert service.wait(waiting)["state"] == "succeeded"


def test_without_a_method_a_training_says_what_it_chose_and_why(service: Service) -> None:
    upload(service, "c", range(24), shots=4)
    job = service.wait(train(service, options={"methods": ["wccn"]}))
    assert job["state"] == "succeeded", job["problem"]
    choice = job["result"]["report"]["choice"]
    assert choice["candidate"] in {"unchanged", *(candidate["name"] for candidate in choice["candidates"])}
    assert choice["reason"]
    training = service.client.get(f"/v1/trainings/{job['result']['training']}").json()
    assert training["request"]["method"] == "auto"
    assert training["report"]["choice"] == choice
    model = service.client.get(f"/v1/models/{job['result']['model']}").json()
    assert model["manifest"]["notes"]["choice"] == choice, "the fit on everybody repeats the choice"


def test_a_training_that_changes_nothing_succeeds_and_passes_the_gate_as_equal(service: Service) -> None:
    upload(service, "c", range(24), shots=4)
    job = service.wait(train(service, options={"max_seconds": 0, "base": "l2"}))
    assert job["state"] == "succeeded", job["problem"]
    assert not job["result"]["report"]["choice"]["changed"]
    path = "/v1/collections/c/deployments/identity:publish"
    published = service.wait(service.client.post(path, json={"model": job["result"]["model"]}))
    assert published["state"] == "succeeded", published["problem"]


@pytest.mark.parametrize("same", [True, False])
def test_answers_of_one_kind_fail_no_training_without_a_method(service: Service, same: bool) -> None:
    upload(service, "c", range(14), shots=2)
    first, second = ([face_ids(service, f"p{n}")[i] for n in range(14)] for i in (0, 1))
    others = second if same else first[1:] + first[:1]
    labels = [{"face_a": a, "face_b": b, "same": same} for a, b in zip(first, others, strict=True)]
    assert service.client.post("/v1/labels", json={"labels": labels}).json()["accepted"] == 14
    job = service.wait(train(service, sources=[{"from": "labels"}], options={"methods": ["wccn"]}, holdout=0))
    assert job["state"] == "succeeded", job["problem"]
    choice = job["result"]["report"]["choice"]
    assert (choice["people"] > 0) == same
    assert choice["changed"] or choice["reason"].startswith("kept as it is: ")


def test_a_training_with_too_few_labels_fails_and_a_running_one_can_be_cancelled(service: Service) -> None:
    upload(service, "c", range(3), shots=2)
    ended = service.wait(train(service, method="ldml", dim=4))
    assert (ended["state"], ended["problem"]["code"], ended["problem"]["missing"]) == ("failed", "TooFewLabels", 7)
    upload(service, "c", range(3, 20), shots=3)
    answer = train(service, method="ldml", dim=4, options={"steps": 5000})
    until = time.monotonic() + 60
    while not service.client.get(f"/v1/trainings/{answer.json()['training']}").json()["curve"]:
        assert time.monotonic() < until, service.client.get(answer.headers["location"]).text
        time.sleep(0.05)
    cancelled_at = time.monotonic()
    assert service.client.post(f"{answer.headers['location']}:cancel").status_code == 200
    ended = service.wait(answer)
    assert ended["state"] == "cancelled"
    assert time.monotonic() - cancelled_at < 10
    assert service.client.get(f"/v1/trainings/{answer.json()['training']}").json()["model"] is None
