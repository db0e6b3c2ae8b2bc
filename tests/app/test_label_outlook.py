"""What more labels are worth, as the suggestions say it."""

import itertools
import threading
from typing import Any

import pytest

from app.db.session import writing
from app.db.tables import Training
from tests.gallery import enrol
from tests.service import Service


def suggest(service: Service, **more: Any) -> dict[str, Any]:
    response = service.client.post("/v1/labels:suggest", json={"collection": "c", **more})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def store_training(service: Service, model: str, current: str, pairs: int, interval: tuple[float, ...] | None) -> None:
    difference = None if interval is None else {"mAP": dict(zip(("value", "low", "high"), interval, strict=True))}
    labels = {"learned": {"pairs": pairs - 5}, "unseen": {"pairs": 5}}
    task = {"labels": labels, "current_model": current, "difference": difference}
    with writing(service.resources.database) as session:
        request = {"collection": "c"}
        session.add(Training(request=request, model=model, report={"tasks": {"identity": task}}))


def test_the_last_measured_gain_of_labels_says_what_more_are_worth(service: Service) -> None:
    enrol(service.resources, "c", range(80, 90), shots=3, named=False)
    assert suggest(service)["outlook"] is None
    assert suggest(service)["pairs"][0]["expected_gain"] is None
    store_training(service, "m1", "lbp-l2", 100, (0.02, 0.01, 0.03))
    store_training(service, "m2", "m1", 300, (0.001, -0.004, 0.006))
    store_training(service, "m3", "m2", 300, (0.5, 0.4, 0.6))  # no more labels: says nothing about them
    store_training(service, "m4", "m2", 400, None)
    answer = suggest(service, limit=5)
    outlook = answer["outlook"]
    assert (outlook["labels"], outlook["next_labels"], outlook["enough"]) == (0, 50, True)
    assert round(outlook["at_most"], 6) == 0.15
    assert 0 < outlook["expected"] <= outlook["at_most"]
    gains = [pair["expected_gain"] for pair in answer["pairs"]]
    assert len(gains) == 5
    assert all(0 <= gain < outlook["at_most"] for gain in gains)
    assert max(gains) > 0
    clusters = suggest(service, kind="clusters")["clusters"]
    assert clusters
    assert all(cluster["expected_gain"] >= 0 for cluster in clusters)


def test_suggestions_take_turns(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a second of a core in a large collection; those of one client took the cores from all others."""
    enrol(service.resources, "c", range(4), shots=2)
    turns = threading.BoundedSemaphore(1)
    monkeypatch.setattr("app.db.statement_limits.TURNS", turns)
    monkeypatch.setattr("app.db.statement_limits.MAX_TURN_WAIT_SECONDS", 0.05)
    with turns:
        assert service.client.post("/v1/labels:suggest", json={"collection": "c"}).status_code == 503
    assert suggest(service)["pairs"]


def test_a_training_with_labels_makes_an_outlook(service: Service) -> None:
    faces = enrol(service.resources, "c", range(20), shots=3)
    labels = [
        {"face_a": a.face_id, "face_b": b.face_id, "same": a.subject_pk == b.subject_pk}
        for a, b in itertools.pairwise(faces)
    ]
    service.client.post("/v1/labels", json={"labels": labels})
    training = {"collection": "c", "method": "ldml", "dim": 4, "options": {"steps": 5}}
    job = service.wait(service.client.post("/v1/trainings", json=training))
    assert job["state"] == "succeeded", job
    outlook = suggest(service)["outlook"]
    assert outlook["labels"] == len(labels)
    assert 0 <= outlook["expected"] <= outlook["at_most"]
