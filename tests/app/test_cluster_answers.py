"""Questions about groups of faces over HTTP, and the pair labels that their answers become."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from app.db import statement_limits
from app.db.tables import Face
from app.labels import cluster_answers
from app.labels.cluster_schemas import MAX_ANSWER_FACES
from tests.databases import delete_collections
from tests.gallery import enrol
from tests.service import Service


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module. The test's faces and labels are removed after it."""
    yield lasting_service
    delete_collections(lasting_service.resources.database)


@pytest.fixture
def faces(service: Service) -> list[Face]:
    return enrol(service.resources, "c", range(70, 74), shots=4, strength=0.3, named=False)


def answer(service: Service, members: list[Face], outliers: list[Face], **more: Any) -> Any:
    body = {"members": [f.face_id for f in members], "outliers": [f.face_id for f in outliers], **more}
    return service.client.post("/v1/labels:answer-cluster", json=body)


def suggest_clusters(service: Service, **more: Any) -> list[dict[str, Any]]:
    response = service.client.post("/v1/labels:suggest", json={"collection": "c", "kind": "clusters", **more})
    assert response.status_code == 200, response.text
    assert response.json()["pairs"] == []
    clusters: list[dict[str, Any]] = response.json()["clusters"]
    return clusters


def test_suggested_clusters_have_three_faces_or_more_and_no_face_twice(service: Service, faces: list[Face]) -> None:
    clusters = suggest_clusters(service)
    shown = [face["face_id"] for cluster in clusters for face in cluster["faces"]]
    assert clusters
    assert len(set(shown)) == len(shown)
    assert set(shown) <= {face.face_id for face in faces}
    assert all(len(cluster["faces"]) >= 3 and 0 <= cluster["same_probability"] <= 1 for cluster in clusters)
    assert len(suggest_clusters(service, limit=1)) == 1


def test_an_answer_becomes_pair_labels_and_its_cluster_is_not_asked_again(service: Service, faces: list[Face]) -> None:
    by_id = {face.face_id: face for face in faces}
    cluster = [by_id[face["face_id"]] for face in suggest_clusters(service)[0]["faces"]]
    result = answer(service, cluster[:-1], cluster[-1:], by="ana", note="twelve looks").json()
    members = len(cluster) - 1
    assert result == {"accepted": members * (members - 1) // 2 + members, "contradictions": []}
    labels = service.client.get("/v1/labels", params={"by": "ana"}).json()["labels"]
    outlier = cluster[-1].face_id
    assert all(label["same"] != (outlier in (label["face_a"], label["face_b"])) for label in labels)
    assert {label["note"] for label in labels} == {"twelve looks"}
    asked = {face.face_id for face in cluster}
    for other in suggest_clusters(service):
        ids = {face["face_id"] for face in other["faces"]}
        assert not (outlier in ids and ids & (asked - {outlier}))
    assert service.client.delete("/v1/labels", params={"by": "ana"}).json()["withdrawn"] == result["accepted"]


def test_an_answer_that_contradicts_itself_is_refused_and_stores_nothing(service: Service, faces: list[Face]) -> None:
    a, b, c, d = faces[:4]
    for members, outliers, code in (
        ([a, b, c], [c], "ContradictoryAnswer"),
        ([a, b, a], [], "InvalidParameter"),
        ([a, b], [d, d], "InvalidParameter"),
        ([a], [], "InvalidParameter"),
    ):
        refused = answer(service, members, outliers)
        assert (refused.status_code, refused.json()["code"]) == (422, code)
    gone = {"members": [a.face_id, b.face_id, "gone"]}
    refused = service.client.post("/v1/labels:answer-cluster", json=gone)
    assert (refused.status_code, refused.json()["code"]) == (422, "ResourceNotFound")
    assert answer(service, [a, b], [], task="age").json()["code"] == "TaskDisabled"
    assert service.client.get("/v1/labels").json()["labels"] == []


def test_contradictions_of_other_labels_and_what_follows_are_listed(service: Service, faces: list[Face]) -> None:
    a, b, c, d = faces[:4]
    chain = [
        {"face_a": x.face_id, "face_b": y.face_id, "same": True, "by": "ana"} for x, y in itertools.pairwise([a, b, c])
    ]
    different = {"face_a": c.face_id, "face_b": d.face_id, "same": False, "by": "ana"}
    service.client.post("/v1/labels", json={"labels": [*chain, different]})
    result = answer(service, [a, d], [b], by="ben").json()
    listed = {(frozenset((p["face_a"], p["face_b"])), p["same"]) for p in result["contradictions"]}
    assert result["accepted"] == 3
    assert listed == {(frozenset((a.face_id, d.face_id)), True), (frozenset((a.face_id, b.face_id)), False)}


def test_a_labeller_who_changes_their_mind_does_not_contradict_themselves(service: Service, faces: list[Face]) -> None:
    a, b = faces[:2]
    assert answer(service, [a, b], [], by="ana").json()["contradictions"] == []
    assert answer(service, [a], [b], by="ana").json() == {"accepted": 1, "contradictions": []}
    assert len(answer(service, [a, b], [], by="ben").json()["contradictions"]) == 1


def test_others_write_while_contradictions_are_looked_for(
    service: Service, faces: list[Face], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All labels of the collection are read and decided for it, which kept all others from writing to SQLite."""
    a, b, c = faces[:3]
    read_collection_consensus = cluster_answers.read_collection_consensus

    def read_and_write(*arguments: Any, **more: Any) -> Any:
        label = {"face_a": a.face_id, "face_b": b.face_id, "same": False, "by": "ana"}
        service.client.post("/v1/labels", json={"labels": [label]}).raise_for_status()
        return read_collection_consensus(*arguments, **more)

    monkeypatch.setattr(cluster_answers, "read_collection_consensus", read_and_write)
    assert answer(service, [a, b, c], [], by="ben").raise_for_status().json()["accepted"] == 3


def test_answers_take_turns(service: Service, faces: list[Face], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads all labels of a collection."""
    turns = threading.BoundedSemaphore(1)
    monkeypatch.setattr(statement_limits, "TURNS", turns)
    monkeypatch.setattr(statement_limits, "MAX_TURN_WAIT_SECONDS", 0.05)
    with turns:
        assert answer(service, faces[:2], []).status_code == 503
    assert answer(service, faces[:2], []).json()["accepted"] == 1


FACES = [[f"{kind}{number}" for number in range(MAX_ANSWER_FACES)] for kind in ("member", "outlier")]


@pytest.mark.parametrize(
    ("texts", "members", "outliers", "code"),
    [
        ({"note": "x" * 4_096}, 100, 100, "InvalidParameter"),
        ({"by": "\N{GRINNING FACE}" * 255}, 100, 100, "InvalidParameter"),
        ({"note": "\N{GRINNING FACE}" * 4_096}, 12, 0, "ResourceNotFound"),
        ({"by": "x" * 255}, 100, 100, "ResourceNotFound"),
    ],
)
def test_the_texts_of_an_answer_are_limited_by_the_number_of_its_labels(
    service: Service, texts: dict[str, str], members: int, outliers: int, code: str
) -> None:
    """A body of 25 KB was stored as 245 MB."""
    body = {"members": FACES[0][:members], "outliers": FACES[1][:outliers], **texts}
    refused = service.client.post("/v1/labels:answer-cluster", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, code)
    assert ("14,950 labels; they may take 4,194,304 bytes" in refused.json()["detail"]) == (code == "InvalidParameter")


def test_an_answer_needs_a_key_for_its_collections(service: Service, faces: list[Face]) -> None:
    body = {"members": [face.face_id for face in faces[:3]]}
    headers = service.key("operator", "other")
    assert service.client.post("/v1/labels:answer-cluster", json=body, headers=headers).status_code == 422
    assert service.client.post("/v1/labels:answer-cluster", json=body, headers=service.key("reader")).status_code == 403
