"""Search and verification over HTTP: by photo, by face and by embedding."""

import base64
import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest
from PIL import Image as Pillow
from sqlalchemy import select

from app.access import keys
from app.collections.service import delete_collection
from app.db.session import reading, writing
from app.db.tables import Collection, Deployment, Face
from app.galleries.subjects import erase_faces
from app.resources import Resources
from app.search import candidates, photo_routes
from app.search.decision import make_pair_threshold
from app.serving.calibration.schedule import CalibrationSchedule
from app.serving.deployments import ServedModel
from app.serving.scores import Scores
from app.storage.blob_store import Blobs
from app.storage.model_cache import LBP_MODEL
from ml import images, synthetic_faces
from ml.calibration import Calibration
from ml.distances import EUCLIDEAN
from ml.identification.open_set import OpenSetCalibration
from ml.identification.person_distance import DecisionRule
from ml.identification.searches import GalleryPeople, search_gallery
from ml.identification.stranger_searches import StrangerSearches
from ml.indexes.flat import FlatIndex
from ml.pipeline import FrontEnd
from ml.types import Crops, Image, Rows
from tests.databases import delete_collections
from tests.rows import GalleryWriter, make_model, people
from tests.service import serve_api

MODEL = make_model("m-one")
ROWS, SUBJECTS = people(20, 3)

on_sqlite = pytest.mark.parametrize("lasting", ["sqlite"], indirect=True)  # no database decides these rules


class Api(httpx.Client):
    """A reader's client, and the collection of this test."""

    staff = ""


@contextmanager
def reader(resources: Resources) -> Iterator[Api]:
    """A client of the API alone."""
    with writing(resources.database) as session:
        secret = keys.create_key(session, "reader", "test")[1]
    with (
        serve_api(resources.settings) as url,
        Api(base_url=url, headers={"Authorization": f"Bearer {secret}"}, timeout=30) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def client(lasting: Resources) -> Iterator[Api]:
    with reader(lasting) as opened:
        yield opened


@pytest.fixture
def api(client: Api, lasting: Resources) -> Iterator[Api]:
    """A client, and the name of a collection of the test's own. The follower looks at every collection that is left."""
    client.staff = f"staff-{uuid4().hex[:8]}"
    yield client
    delete_collections(lasting.database)


@pytest.fixture
def gallery(lasting: Resources, api: Api) -> GalleryWriter:
    """Twenty people with three faces each and five strangers far away; no calibration."""
    made = GalleryWriter(lasting, api.staff).make(MODEL)
    metadata = [{"age": 20 + i % 30, "site": "east" if i % 2 else "west", "vip": i % 3 == 0} for i in range(60)]
    made.add({MODEL.id: ROWS}, SUBJECTS, metadata=metadata)
    made.add({MODEL.id: ROWS[:5] + 9}, [None] * 5, role="distractor")
    return made


def by_vector(api: Api, vector: Rows, collection: str = "", **params: Any) -> httpx.Response:
    """Each face by itself, unless the test says otherwise."""
    params = {"group_by": "face"} | {k: json.dumps(v) if isinstance(v, dict) else v for k, v in params.items()}
    body = {"vector": vector.astype(np.float64).tolist()}
    return wait_until_indexed(
        lambda: api.post(f"/v1/collections/{collection or api.staff}/search:by-embedding", json=body, params=params),
        api,
        collection,
    )


def until(is_reached: Callable[[], bool], seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not is_reached():
        assert time.monotonic() < limit, "it did not come true in time"
        time.sleep(0.05)


def wait_until_indexed(ask: Any, api: Api, collection: str = "") -> httpx.Response:
    """Wait until the index is loaded and has every face of the tables."""
    limit = time.monotonic() + 30
    while True:
        answer: httpx.Response = ask()
        if answer.status_code == 503 and time.monotonic() < limit:
            continue  # a machine with other work takes longer to load it than a request waits
        change = api.get(f"/v1/collections/{collection or api.staff}").json().get("change", 0)
        if answer.status_code != 200 or answer.json()["index_generation"].endswith(f".{change}"):
            return answer
        assert time.monotonic() < limit, answer.text
        time.sleep(0.02)


def decide_all(api: Api, vectors: Rows, **params: Any) -> list[dict[str, Any]]:
    """Return the faces of answers to searches for people. The index has every face by the first answer."""
    first = by_vector(api, vectors[0], group_by="subject", **params)
    bodies = [{"vector": vector.astype(np.float64).tolist()} for vector in vectors[1:]]
    return [answer.json()["faces"][0] for answer in (first, *(api.post(first.url, json=body) for body in bodies))]


def matches(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    [face] = answer.json()["faces"]
    return list(face["matches"])


def subjects(answer: httpx.Response) -> list[str | None]:
    return [m["subject"] and m["subject"]["id"] for m in matches(answer)]


def test_a_search_by_embedding_returns_the_nearest_faces_first(api: Api, gallery: GalleryWriter) -> None:
    answer = by_vector(api, ROWS[7], limit=5)
    returned = matches(answer)
    assert subjects(answer)[:3] == ["p002"] * 3
    assert returned[0]["distance"] == 0
    assert returned[0]["subject"] == {"id": "p002", "external_id": "x-p002"}
    assert [m["distance"] for m in returned] == sorted(m["distance"] for m in returned)
    body = answer.json()
    assert (body["model"], body["m"], body["fraction"], body["calibrated"]) == (MODEL.id, 1, 1.0, False)
    assert returned[0]["similarity"] is returned[0]["probability"] is returned[0]["passes"] is body["threshold"] is None
    assert body["faces"][0]["decision"] is body["faces"][0]["subject"] is None
    assert answer.headers["X-Model"] == MODEL.id
    assert answer.headers["X-Index-Generation"] == body["index_generation"]
    assert answer.headers["X-Request-Id"]


def test_distractors_match_like_other_faces_and_are_marked(api: Api, gallery: GalleryWriter) -> None:
    first = matches(by_vector(api, ROWS[0] + 9))[0]
    assert (first["role"], first["subject"], first["distance"]) == ("distractor", None, 0)


UNSEARCHABLE: list[tuple[Any, str]] = [
    ([1.0] * 7, "must have 8 numbers"),
    ([1.0] * 9, "must have 8 numbers"),
    ([], "at least 1"),
    ([float("nan")] * 8, "finite"),
    ([float("inf")] * 8, "finite"),
    ([1e300] * 8, "less than or equal"),
    ([10**400] * 8, "valid number"),
    (["a"] * 8, "valid number"),
    (None, "valid list"),
]


def test_an_invalid_embedding_is_refused_with_422(api: Api, gallery: GalleryWriter) -> None:
    by_vector(api, ROWS[0])
    for vector, reason in UNSEARCHABLE:
        body = json.dumps({"vector": vector}).encode()
        answer = api.post(
            f"/v1/collections/{api.staff}/search:by-embedding",
            content=body,
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 422, answer.text
        assert reason in answer.text
        assert answer.json()["code"] == "InvalidParameter"


UNTAKEN: list[dict[str, Any]] = [
    {"limit": 0},
    {"limit": 4097},
    {"limit": "many"},
    {"threshold": 101},
    {"threshold": "nan"},
    {"threshold": 0.8},
    {"fpir": 0},
    {"fpir": 1},
    {"fpir": 0.01, "fmr": 0.01},
    {"fmr": 0},
    {"fmr": 1},
    {"fmr": 0.1, "threshold": 50},
    {"m": 0},
    {"m": 3, "target_recall": 0.9},
    {"candidates": 0},
    {"candidates": 100, "max_latency_ms": 5},
    {"max_latency_ms": -1},
    {"filter": "{"},
    {"filter": "[]"},
    {"filter": "{}"},
    {"filter": '{"size": 3}'},
    {"filter": '{"metadata": {"age": {"between": [1, 2]}}}'},
    {"filter": '{"metadata": {"a\\"b": 1}}'},
    {"filter": '{"metadata": {"age": NaN}}'},
    {"filter": '{"metadata": {"age": {"gte": null}}}'},
    {"filter": f'{{"metadata": {{"badge": {10**30}}}}}'},
    {"group_by": "age"},
    {"include": "reasons"},
    {"include": "explanation"},
    {"include": "explanation", "limit": 21},
    {"include": "crop", "limit": 4096},
    {"nearest": 3},
]


def test_an_invalid_parameter_is_refused_with_422(api: Api, gallery: GalleryWriter) -> None:
    by_vector(api, ROWS[0])
    for params in UNTAKEN:
        answer = by_vector(api, ROWS[0], **params)
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_missing_face_or_collection_is_answered_with_404(api: Api, gallery: GalleryWriter) -> None:
    assert by_vector(api, ROWS[0], "nobody").status_code == 404
    assert by_vector(api, ROWS[0], task="age").json()["code"] == "UnknownTask"
    assert by_vector(api, ROWS[0], model="m-nine").json()["code"] == "UnknownModel"
    assert by_vector(api, ROWS[0], model="challenger").status_code == 404
    assert api.post(f"/v1/collections/{api.staff}/faces/none/search").status_code == 404
    assert by_vector(api, ROWS[0], model=MODEL.id).status_code == 200


def test_a_search_needs_a_key(api: Api, gallery: GalleryWriter) -> None:
    for path in (
        f"collections/{api.staff}/search",
        f"collections/{api.staff}/search:by-embedding",
        f"collections/{api.staff}/faces/x/search",
    ):
        assert api.post(f"/v1/{path}", headers={"Authorization": ""}).status_code == 401
    assert api.post("/v1/verify", headers={"Authorization": ""}).status_code == 401


def test_a_search_by_face_finds_the_person_and_leaves_the_face_itself_out(api: Api, gallery: GalleryWriter) -> None:
    with writing(gallery.resources.database) as session:
        face_id = session.get_one(Face, gallery.pks[30]).face_id
    params = {"limit": 64, "group_by": "face"}
    answer = wait_until_indexed(
        lambda: api.post(f"/v1/collections/{api.staff}/faces/{face_id}/search", params=params), api
    )
    assert subjects(answer)[:2] == ["p010", "p010"]
    assert len(matches(answer)) == 64
    assert face_id not in {m["face_id"] for m in matches(answer)}


def test_each_subject_is_listed_once_by_its_nearest_face(api: Api, gallery: GalleryWriter) -> None:
    answer = by_vector(api, ROWS[0], group_by="subject", limit=22)
    named = [s for s in subjects(answer) if s]
    assert named[0] == "p000"
    assert len(named) == len(set(named)) == 20
    assert len(subjects(answer)) == 22
    alone = matches(by_vector(api, ROWS[0], group_by="subject", limit=1))
    assert (len(alone), alone[0]["distance"]) == (1, 0)


FILTERS: list[tuple[dict[str, Any], Callable[[int], object]]] = [
    ({"subject": "p003"}, lambda i: i // 3 == 3),
    ({"subject": ["p003", "p004"]}, lambda i: i // 3 in (3, 4)),
    ({"subject": None}, lambda i: i >= 60),
    ({"role": "distractor"}, lambda i: i >= 60),
    ({"metadata": {"site": "east"}}, lambda i: i < 60 and i % 2),
    ({"metadata": {"vip": True}}, lambda i: i < 60 and i % 3 == 0),
    ({"metadata": {"vip": 1}}, lambda i: False),
    ({"metadata": {"age": 25}}, lambda i: i < 60 and i % 30 == 5),
    ({"metadata": {"age": {"gte": 30, "lt": 40}}}, lambda i: i < 60 and 10 <= i % 30 < 20),
    ({"metadata": {"age": {"gt": "1"}}}, lambda i: False),
    ({"metadata": {"site": {"gt": "f"}}}, lambda i: i < 60 and not i % 2),
    ({"metadata": {"age": {"in": [20, 21, "x"]}}}, lambda i: i < 60 and i % 30 < 2),
    ({"metadata": {"site": {"ne": "east"}}}, lambda i: i >= 60 or not i % 2),
    ({"metadata": {"site": {"exists": False}}}, lambda i: i >= 60),
    ({"metadata": {"site": None}}, lambda i: i >= 60),
    ({"metadata": {"nothing": 2**63 - 1}}, lambda i: False),
    ({"subject_metadata": {"team": "red"}}, lambda i: i < 60 and not (i // 3) % 2),
    ({"subject": "p003", "metadata": {"site": "east"}}, lambda i: i in (9, 11)),
]


def test_a_filter_keeps_only_matching_faces(api: Api, gallery: GalleryWriter) -> None:
    with writing(gallery.resources.database) as session:
        there = {i: session.get_one(Face, pk).face_id for i, pk in enumerate(gallery.pks)}
    for wanted, expected in FILTERS:
        face_ids = {m["face_id"] for m in matches(by_vector(api, ROWS[0], filter=wanted, limit=4096))}
        assert face_ids == {face_id for i, face_id in there.items() if expected(i)}, wanted


def calibrate(api: Api, gallery: GalleryWriter, open_set: dict[str, Any] | None = None) -> None:
    """Calibrate with genuine distances about 0.6 and impostor distances about 16; wait until this is served."""
    draw = np.random.default_rng(0)
    gallery.calibrate(MODEL.id, 0.6 * draw.chisquare(8, 900) / 8, 16 * draw.chisquare(8, 90_000) / 8, open_set)
    limit = time.monotonic() + 5
    while not by_vector(api, ROWS[0]).json()["calibrated"]:
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_matches_beyond_the_threshold_are_left_out(api: Api, gallery: GalleryWriter) -> None:
    assert by_vector(api, ROWS[0], threshold=50).json()["code"] == "NotCalibrated"
    calibrate(api, gallery)
    every = matches(by_vector(api, ROWS[0], limit=64))
    assert [m["similarity"] for m in every] == sorted((m["similarity"] for m in every), reverse=True)
    answer = by_vector(api, ROWS[0], limit=64, threshold=every[2]["similarity"])
    assert [m["face_id"] for m in matches(answer)] == [m["face_id"] for m in every[:3]]
    assert all(m["passes"] for m in matches(answer))
    assert answer.json()["faces"][0]["decision"] == "match"
    nobody = by_vector(api, ROWS[0] - 50, threshold=99)
    assert matches(nobody) == []
    assert nobody.json()["faces"][0]["decision"] == "unknown"


def test_a_false_match_rate_needs_a_calibration_and_then_gives_its_threshold(api: Api, gallery: GalleryWriter) -> None:
    assert by_vector(api, ROWS[0], fmr=0.01).json()["code"] == "NotCalibrated"
    calibrate(api, gallery)
    answer = by_vector(api, ROWS[0], fmr=0.01, limit=64)
    threshold = answer.json()["threshold"]
    assert threshold["kind"] == "fmr"
    assert threshold["fmr"] <= 0.01
    assert threshold["low"] < threshold["fmr"] < threshold["high"]
    assert threshold["enough"] is True
    assert all(m["distance"] <= threshold["distance"] and m["passes"] for m in matches(answer))
    near = matches(by_vector(api, ROWS[0], limit=64))
    assert {m["passes"] for m in near} == {True, False}
    assert near[0]["probability"] * 100 == pytest.approx(near[0]["similarity"])
    assert near[0]["fmr_estimate"] < near[-1]["fmr_estimate"]
    assert by_vector(api, ROWS[0], fmr=1e-6, limit=1).json()["threshold"]["enough"] is False


def measured(gallery: GalleryWriter, further: Rows = ROWS[:0]) -> dict[str, Any]:
    """Measure how strangers score: each person of the gallery searches without their own faces.

    further: rows of later faces, which make the gallery larger but are not searched among
    """
    index = FlatIndex(8)
    pks = np.array(gallery.pks[:65])
    index.add(pks, np.concatenate([ROWS, ROWS[:5] + 9]).astype(np.float32))
    owners = np.concatenate([np.arange(60) // 3, np.full(5, -1)])
    people = GalleryPeople.from_rows(pks, owners, np.arange(65) >= 60)
    searches = search_gallery(index, people, np.arange(60), DecisionRule())
    several = [searches.stranger + 0.001 * i for i in range(10)]  # as many searches as ten galleries of twenty people
    strangers = StrangerSearches.from_distances(
        "leave-one-out", np.concatenate(several), np.arange(600).astype(np.int64), 65 + len(further)
    )
    return OpenSetCalibration(DecisionRule(), (strangers,)).to_dict()


CROWD = np.repeat(ROWS[::3], 60, axis=0) + np.random.default_rng(3).normal(0, 0.02, (1200, 8)).astype(np.float32)


def test_neither_limit_nor_grouping_changes_who_is_the_next_person(api: Api, gallery: GalleryWriter) -> None:
    """Each person has more faces than a search looks at first."""
    gallery.add({MODEL.id: CROWD}, [f"p{i // 60:03}" for i in range(len(CROWD))])
    calibrate(api, gallery, measured(gallery, CROWD))
    answers = [
        by_vector(api, ROWS[7] + np.float32(0.3), group_by=group_by, limit=limit)
        for group_by in ("subject", "face")
        for limit in (1, 2, 40)
    ]
    assert len({(m[0]["subject"]["id"], m[0]["person_distance"]) for m in map(matches, answers)}) == 1
    assert len({json.dumps(a.json()["faces"][0]["decision"]) for a in answers}) == 1


def scatter(centre: Rows, distance: float) -> Rows:
    """Draw 900 rows around a centre, more than a search looks at for the next person."""
    rows = np.random.default_rng(5).normal(size=(900, len(centre)))
    return (centre + distance * rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def without_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No gallery is measured again."""
    monkeypatch.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)


@pytest.mark.usefixtures("without_renewal")
def test_nobody_behind_hundreds_of_faces_without_a_name_is_the_next_person(api: Api, gallery: GalleryWriter) -> None:
    """However many matches are requested."""
    query = ROWS[7] + np.float32(0.02)
    nearer = scatter(query, 1.0)
    gallery.add({MODEL.id: nearer}, [None] * len(nearer))
    calibrate(api, gallery, measured(gallery, nearer))
    until(lambda: by_vector(api, query).json()["threshold"]["enough"])
    answers = [
        by_vector(api, query, group_by=group_by, limit=limit)
        for group_by in ("subject", "face")
        for limit in (1, 40, 1024)
    ]
    assert len({(m[0]["subject"]["id"], m[0]["person_distance"]) for m in map(matches, answers)}) == 1
    next_people = [m for m in matches(answers[2]) if m["subject"] and m["subject"]["id"] != "p002"]
    assert {m["person_distance"] for m in next_people} == {None}


@pytest.mark.usefixtures("without_renewal")
def test_a_filter_names_nobody_behind_hundreds_of_faces_without_a_name(api: Api, gallery: GalleryWriter) -> None:
    query = ROWS[7] + np.float32(0.02)
    calibrate(api, gallery, measured(gallery))
    filters: list[dict[str, Any]] = [{"filter": {"subject": ["p002", "p005"]}}, {"filter": {"role": "gallery"}}, {}]

    def find_named() -> list[str | None]:
        faces = [by_vector(api, query, group_by="subject", **wanted).json()["faces"][0] for wanted in filters]
        return [face["subject"] and face["subject"]["id"] for face in faces]

    assert find_named() == ["p002"] * 3
    nearer = scatter(query, 0.01)
    gallery.add({MODEL.id: nearer}, [None] * len(nearer))
    calibrate(api, gallery, measured(gallery, nearer))
    until(lambda: by_vector(api, query).json()["threshold"]["enough"])
    assert find_named() == [None] * 3


def test_a_search_of_fewer_cells_than_the_rate_was_measured_in_is_cautious(
    api: Api, gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may miss the next person, whose absence would have strangers named."""
    calibrate(api, gallery, measured(gallery))
    monkeypatch.setattr(FlatIndex, "default_m", 4)
    monkeypatch.setattr(FlatIndex, "cells", 8)
    full = [by_vector(api, ROWS[7], **effort).json()["threshold"] for effort in ({}, {"m": 4}, {"m": 8})]
    assert [(t["enough"], t["evidence"]["source"], t["note"]) for t in full] == [(True, "leave-one-out", None)] * 3
    few = by_vector(api, ROWS[7], m=3).json()["threshold"]
    assert (few["enough"], few["evidence"]["source"], few["evidence"]["more_people"]) == (False, "pairs", 0)
    assert "looks at fewer faces" in few["note"]
    assert few["evidence"]["rule"] == {"template_weight": 0, "margin_weight": 0}


def test_the_decision_names_a_person_or_is_unknown(api: Api, gallery: GalleryWriter) -> None:
    calibrate(api, gallery, measured(gallery))
    answer = by_vector(api, ROWS[7] + np.float32(0.02), group_by="subject", limit=3).json()
    [face], threshold = answer["faces"], answer["threshold"]
    assert (face["decision"], face["subject"]) == ("match", {"id": "p002", "external_id": "x-p002"})
    assert (threshold["kind"], threshold["fpir"], threshold["enough"], threshold["note"]) == ("fpir", 0.01, True, None)
    assert threshold["low"] < 0.01 < threshold["high"]
    assert threshold["distance"] < threshold["possible_distance"]
    evidence = threshold["evidence"]
    assert (evidence["source"], evidence["people"], evidence["gallery_faces"]) == ("leave-one-out", 600, 65)
    first, *others = face["matches"]
    assert first["passes"] is True
    assert first["person_distance"] <= threshold["distance"] < others[0]["person_distance"]
    assert len(first["faces"]) == 3
    assert first["faces"][0] == {k: first[k] for k in ("face_id", "distance", "similarity")}
    far = by_vector(api, ROWS[7] - np.float32(9), group_by="subject").json()["faces"][0]
    assert (far["decision"], far["subject"]) == ("unknown", None)
    assert len(far["matches"]) == 10, "a rate of strangers is no filter"


def test_a_face_without_a_name_matches_by_its_own_distance(api: Api, gallery: GalleryWriter) -> None:
    """How far the next person with a name is says nothing of a face that may show anybody."""
    calibrate(api, gallery, measured(gallery))
    far = ROWS.mean(0) - np.float32([60] * 8)
    gallery.add({MODEL.id: far[None].astype(np.float32)}, [None])
    threshold = by_vector(api, ROWS[0]).json()["threshold"]
    assert 0 < threshold["nameless_distance"] < threshold["nameless_possible_distance"]
    decisions = {}
    for name, limit in (("match", "nameless_distance"), ("possible", "nameless_possible_distance")):
        for factor in (0.98, 1.02):
            query = far - np.float32(np.sqrt(factor * threshold[limit] / 8))  # of 8 numbers; distances are squared
            face = by_vector(api, query, group_by="subject").json()["faces"][0]
            assert (face["subject"], face["matches"][0]["subject"]) == (None, None)
            assert face["matches"][0]["person_distance"] < threshold["distance"], "its lead over people with names"
            decisions[name, factor] = face["decision"], face["matches"][0]["passes"]
    assert decisions == {
        ("match", 0.98): ("match", True), ("match", 1.02): ("possible", False),
        ("possible", 0.98): ("possible", False), ("possible", 1.02): ("unknown", False),
    }  # fmt: skip


@pytest.mark.parametrize("group_by", ["subject", "face"])
def test_faces_without_a_name_do_not_hide_the_person_behind_them(
    api: Api, gallery: GalleryWriter, group_by: str
) -> None:
    """Ten people are compared. Faces without a name are shown, and take no place of one who has a name."""
    calibrate(api, gallery, measured(gallery))
    query = ROWS[7] + np.float32(0.02)
    nearer = query + np.float32(1e-4) * np.random.default_rng(0).normal(size=(60, len(query))).astype(np.float32)
    gallery.add({MODEL.id: nearer}, [None] * 60)
    face = by_vector(api, query, group_by=group_by, limit=3).json()["faces"][0]
    assert (face["decision"], face["subject"] and face["subject"]["id"]) == ("match", "p002")
    if group_by == "subject":
        assert [m["subject"] and m["subject"]["id"] for m in face["matches"]] == ["p002", None, None]


def test_a_person_whom_a_label_rules_out_is_not_named(api: Api, gallery: GalleryWriter) -> None:
    calibrate(api, gallery, measured(gallery))
    [stranger] = gallery.add({MODEL.id: ROWS[7:8] + np.float32(0.02)}, [None])
    photo = ROWS[7] + np.float32(0.019)
    decided = by_vector(api, photo, group_by="subject").json()["faces"][0]
    assert (decided["decision"], decided["subject"]["id"], decided["corrected_by"]) == ("match", "p002", [])
    gallery.label([(gallery.pks[7], gallery.pks[-1])], same=False)
    decided = by_vector(api, photo, group_by="subject").json()["faces"][0]
    assert (decided["decision"], decided["subject"]) == ("match", None), "it is the face without a name"
    [correction] = decided["corrected_by"]
    assert (correction["effect"], correction["subject"]["id"]) == ("rejected", "p002")
    assert stranger in {correction["face_a"], correction["face_b"]}
    filtered = by_vector(api, photo, group_by="subject", fmr=0.01).json()["faces"][0]
    assert "p002" not in [m["subject"] and m["subject"]["id"] for m in filtered["matches"]]
    assert filtered["corrected_by"] == decided["corrected_by"]


def test_labels_that_join_almost_everybody_name_no_strangers(api: Api, gallery: GalleryWriter) -> None:
    calibrate(api, gallery, measured(gallery))
    draw = np.random.default_rng(7)
    strangers = draw.normal(0, ROWS.std(), (20, 8)).astype(np.float32)

    def count_named() -> int:
        answers = [by_vector(api, stranger, group_by="subject").json()["faces"][0] for stranger in strangers]
        return sum(answer["decision"] == "match" for answer in answers)

    before = count_named()
    gallery.label([(gallery.pks[0], gallery.pks[3 * person]) for person in range(1, 20)], same=True)
    assert (before, count_named()) == (0, 0)


@on_sqlite
def test_a_filter_names_no_strangers_whom_the_whole_gallery_does_not_name(api: Api, lasting: Resources) -> None:
    """Whoever the filter leaves out is still the next person, and a distractor still stands in front of people."""
    filtered = GalleryWriter(lasting, api.staff).make(MODEL)
    rows, subjects = people(200, 3, spread=0.3)
    filtered.add({MODEL.id: rows}, subjects)
    filtered.add({MODEL.id: people(2000, 1, seed=1, spread=0.3)[0]}, [None] * 2000, role="distractor")
    strangers, _ = people(200, 1, seed=2, spread=0.3)

    def find_named(vectors: Rows, **params: Any) -> list[str | None]:
        return [face["subject"] and face["subject"]["id"] for face in decide_all(api, vectors, fpir=0.05, **params)]

    def is_measured() -> bool:
        with reading(lasting.database) as session:
            measured = session.get_one(Deployment, (api.staff, "identity")).measurements.get(MODEL.id, {})
        return measured.get("faces") == 2600

    until(is_measured)
    named = find_named(strangers)
    assert np.mean([name is not None for name in named]) < 0.1
    for wanted in ({"role": "gallery"}, {"subject": subjects[:6]}):
        of_filtered = find_named(strangers, filter=wanted)
        assert [name for name, of_all in zip(of_filtered, named, strict=True) if name and not of_all] == [], wanted
    enrolled = rows[: 3 * 6 : 3] + np.float32(0.01)
    assert find_named(enrolled, filter={"subject": subjects[: 3 * 6]}) == subjects[: 3 * 6 : 3]


@on_sqlite
def test_labels_that_name_most_faces_name_no_strangers(api: Api, lasting: Resources) -> None:
    """Thresholds are measured again with the people that searches find, whatever the labels say."""
    model = make_model("m-64", dim=64)
    labelled = GalleryWriter(lasting, api.staff).make(model)
    rows, subjects = people(200, 4, dim=64, spread=0.6)
    labelled.add({model.id: rows}, subjects)
    labelled.add({model.id: people(4000, 1, dim=64, seed=1, spread=0.6)[0]}, [None] * 4000)
    strangers, _ = people(300, 1, dim=64, seed=2, spread=0.6)

    def find_named_share() -> float:
        faces = decide_all(api, strangers, fpir=0.05)
        return float(np.mean([face["decision"] == "match" and bool(face["subject"]) for face in faces]))

    def is_measured(named_faces: int) -> bool:
        with reading(lasting.database) as session:
            measured = session.get_one(Deployment, (api.staff, "identity")).measurements.get(model.id, {})
        return (measured.get("faces"), measured.get("named_faces")) == (4800, named_faces)

    until(lambda: is_measured(800))
    before = find_named_share()
    labelled.label([(pk, labelled.pks[4 * (i % 200)]) for i, pk in enumerate(labelled.pks[800:])], same=True)
    until(lambda: is_measured(4800))
    assert max(before, find_named_share()) < 0.1  # 0.053 and 0.050; 0.123 while they are not measured again


@on_sqlite
@pytest.mark.parametrize("name", ["middle", None], ids=["named", "nameless"])
def test_somebody_new_in_the_middle_of_all_is_named_for_no_stranger(
    api: Api, lasting: Resources, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    model = make_model("m-64", dim=64)
    writer = GalleryWriter(lasting, api.staff).make(model)
    rows, subjects = people(200, 3, dim=64, spread=0.5)
    writer.add({model.id: rows}, subjects)
    strangers, _ = people(200, 1, dim=64, seed=2, spread=0.5)
    middle = np.zeros((1, 64), np.float32)

    def find_matched_share() -> float:
        return float(np.mean([face["decision"] == "match" for face in decide_all(api, strangers)]))

    def is_measured(faces: int) -> bool:
        with reading(lasting.database) as session:
            measured = session.get_one(Deployment, (api.staff, "identity")).measurements.get(model.id, {})
        return bool(measured.get("faces") == faces)

    def decide_middle() -> tuple[Any, Any]:
        [face] = decide_all(api, middle)
        return face["decision"], face["subject"] and face["subject"]["id"]

    until(lambda: is_measured(600))
    before = find_matched_share()
    with monkeypatch.context() as patches:
        patches.setattr(CalibrationSchedule, "renew_if_due", lambda *_: None)
        writer.add({model.id: middle}, [name])
        assert decide_middle()  # the index has the face
        until(lambda: decide_middle() != ("match", name), 5)
        assert find_matched_share() == before < 0.03
    if name:
        until(lambda: is_measured(601))
        until(lambda: decide_middle() == ("match", name))
        assert find_matched_share() < 0.03


def test_the_decision_does_not_depend_on_the_matches_that_are_shown(api: Api, gallery: GalleryWriter) -> None:
    calibrate(api, gallery, measured(gallery))
    for query in (ROWS[7] + np.float32(0.1), ROWS[7] + np.float32(0.5), ROWS[30] * 0.5, ROWS[0] + 9):
        shown = [{"limit": limit, "group_by": by} for limit in (1, 5, 64) for by in ("subject", "face")]
        faces = [by_vector(api, query, **params).json()["faces"][0] for params in shown]
        assert len({(f["decision"], str(f["subject"])) for f in faces}) == 1
    assert faces[0]["decision"] == "unknown", "a distractor lies there"


def test_a_higher_false_match_rate_names_more_queries(api: Api, gallery: GalleryWriter) -> None:
    calibrate(api, gallery, measured(gallery))
    rates = [0.01, 0.05, 0.2, 0.9]
    distances = [by_vector(api, ROWS[7], fpir=rate).json()["threshold"]["distance"] for rate in rates]
    assert distances == sorted(set(distances))
    between = 0.4 * ROWS[7] + 0.6 * ROWS[30]
    decisions = [by_vector(api, between, fpir=f).json()["faces"][0]["decision"] for f in rates]
    assert (decisions[0], decisions[-1]) == ("unknown", "match")


def test_a_search_without_a_rate_uses_the_default_of_the_deployment(api: Api, gallery: GalleryWriter) -> None:
    calibrate(api, gallery, measured(gallery))
    with writing(gallery.resources.database) as session:
        session.get_one(Deployment, (api.staff, "identity")).default_fpir = 0.2
    limit = time.monotonic() + 5
    while (threshold := by_vector(api, ROWS[7]).json()["threshold"])["fpir"] != 0.2:
        assert time.monotonic() < limit
        time.sleep(0.02)
    assert threshold["distance"] == by_vector(api, ROWS[7], fpir=0.2).json()["threshold"]["distance"]


def test_a_nearer_unnamed_face_does_not_hide_the_person(api: Api, gallery: GalleryWriter) -> None:
    calibrate(api, gallery, measured(gallery))
    query = ROWS[7] + np.float32(0.02)
    gallery.add({MODEL.id: query[None]}, [None])
    face = by_vector(api, query, group_by="subject").json()["faces"][0]
    assert (face["decision"], face["subject"]["id"]) == ("match", "p002")


def test_insufficient_evidence_is_reported_and_gives_a_stricter_threshold(api: Api, gallery: GalleryWriter) -> None:
    assert by_vector(api, ROWS[7], fpir=0.01).json()["code"] == "NotCalibrated"
    calibrate(api, gallery)
    threshold = by_vector(api, ROWS[7]).json()["threshold"]
    assert (threshold["enough"], threshold["low"], threshold["evidence"]["source"]) == (False, None, "pairs")
    assert threshold["evidence"]["more_people"] == 150
    assert "150 more enrolled people" in threshold["note"]
    assert threshold["evidence"]["rule"] == {"template_weight": 0, "margin_weight": 0}
    loose = by_vector(api, ROWS[7], fpir=0.05).json()["threshold"]
    halved = by_vector(api, ROWS[7], fmr=1 - 0.975 ** (1 / 65)).json()["threshold"]
    assert loose["distance"] == pytest.approx(halved["distance"])
    assert threshold["distance"] < loose["distance"]


def test_a_removed_face_is_not_returned_to_a_search_that_asks_to_see_the_change(
    api: Api, gallery: GalleryWriter
) -> None:
    by_vector(api, ROWS[0])
    with writing(gallery.resources.database) as session:
        collection = session.get_one(Collection, api.staff)
        erase_faces(session, collection, Face.pk == gallery.pks[0])
        change = collection.change
    answer = api.post(
        f"/v1/collections/{api.staff}/search:by-embedding",
        json={"vector": ROWS[0].tolist()},
        params={"limit": 64, "group_by": "face"},
        headers={"X-Change-Number": str(change)},
    )
    assert answer.headers["X-Index-Generation"].endswith(f".{change}")
    assert len(matches(answer)) == 64
    assert matches(answer)[0]["distance"] > 0


def test_a_search_does_not_wait_for_a_change_that_nobody_has_made(
    api: Api, gallery: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_vector(api, ROWS[0])
    monkeypatch.setattr("app.serving.deployments.Registry.wait", None)
    answer = api.post(
        f"/v1/collections/{api.staff}/search:by-embedding",
        json={"vector": ROWS[0].tolist()},
        headers={"X-Change-Number": "1000000"},
    )
    assert answer.status_code == 422
    assert "change 1000000" in answer.json()["detail"]


def test_a_search_in_a_collection_that_another_process_has_deleted_gives_404(api: Api, gallery: GalleryWriter) -> None:
    by_vector(api, ROWS[0])
    with writing(gallery.resources.database) as session:
        delete_collection(session, api.staff)
    body = {"vector": ROWS[0].tolist()}
    limit = time.monotonic() + 20
    while api.post(f"/v1/collections/{api.staff}/search:by-embedding", json=body).status_code != 404:
        assert time.monotonic() < limit
        time.sleep(0.02)


@cache
def photo(person: int, shot: int) -> bytes:
    return encoded(synthetic_faces.draw(synthetic_faces.person(person), shot, strength=0.3))


def encoded(picture: Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(picture).save(buffer, kind, compress_level=1)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def enrolled() -> dict[str, Any]:
    """A gallery of six people, as enrolment would write it; filled by the first test that needs it."""
    return {}


@pytest.fixture
def faces(lasting: Resources, api: Api, enrolled: dict[str, Any]) -> GalleryWriter:
    """Six drawn people with two photos each, described by the first model."""
    first = lasting.models.get(LBP_MODEL)
    if not enrolled:
        seen = [lasting.front_end.faces(images.read(photo(p, s)))[0] for p in range(6) for s in range(2)]
        crops = {kind: np.stack([f.crops[kind] for f in seen]) for kind in first.recipe.crops}
        enrolled.update(rows=first.embed_crops(crops)["identity"], grey=crops["grey"])
    made = GalleryWriter(lasting, api.staff).make(first)
    made.add({LBP_MODEL: enrolled["rows"]}, [f"d{p}" for p in range(6) for _ in range(2)])
    return made


def by_photo(api: Api, data: bytes, **params: Any) -> httpx.Response:
    """Each face by itself, unless the test says otherwise."""
    files, params = {"file": ("photo.png", data)}, {"group_by": "face"} | params
    return wait_until_indexed(lambda: api.post(f"/v1/collections/{api.staff}/search", files=files, params=params), api)


def test_a_photo_finds_its_person(api: Api, faces: GalleryWriter) -> None:
    answer = by_photo(api, photo(3, 1), limit=2)
    assert subjects(answer)[0] == "d3"
    assert matches(answer)[0]["distance"] < 1e-3
    box = answer.json()["faces"][0]["bounding_box"]
    assert box["width"] > 50
    assert answer.json()["model"] == LBP_MODEL
    assert subjects(by_photo(api, photo(2, 7)))[0] == "d2"


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_base64_photo_and_an_uploaded_photo_give_the_same_matches(api: Api, faces: GalleryWriter) -> None:
    by_file = by_photo(api, photo(3, 1), limit=5)
    params, url = {"limit": 5, "group_by": "face"}, f"/v1/collections/{api.staff}/search"
    assert api.post(url, params=params, json={"image": text(photo(3, 1))}).json() == by_file.json()
    assert api.post(url, json={"image": "%"}).json()["code"] == "InvalidImageFormat"
    assert api.post(url, json={"url": "https://example.org/a.png"}).status_code == 422


def test_every_face_of_a_photo_can_be_searched(api: Api, faces: GalleryWriter) -> None:
    two = np.concatenate([synthetic_faces.draw(synthetic_faces.person(p), 0, strength=0.3) for p in (1, 4)], axis=1)
    answer = by_photo(api, encoded(two), face_selection="all", limit=1)
    assert {f["matches"][0]["subject"]["id"] for f in answer.json()["faces"]} == {"d1", "d4"}
    assert len(by_photo(api, encoded(two), limit=1).json()["faces"]) == 1


def test_the_faces_of_a_photo_share_the_matches_of_an_answer(api: Api, faces: GalleryWriter) -> None:
    """A photo of a hundred faces had 409,600 matches: 115 MB."""
    drawn = [synthetic_faces.draw(synthetic_faces.person(p), 0, strength=0.3) for p in range(5)]
    photo, every = encoded(np.concatenate(drawn, axis=1)), {"face_selection": "all"}
    assert len(by_photo(api, photo, limit=4096 // 5, **every).json()["faces"]) == 5
    refused = by_photo(api, photo, limit=4096 // 5 + 1, **every)
    assert (refused.status_code, refused.json()["code"]) == (422, "InvalidParameter")
    assert "4,096 matches for all faces of a photo" in refused.json()["detail"]
    assert (refused.json()["limit"], refused.json()["faces"]) == (819, 5)
    assert by_photo(api, photo, limit=4096).status_code == 200, "the largest face alone"
    assert by_photo(api, photo, limit=81, include="crop", **every).json()["limit"] == 80
    assert by_photo(api, photo, limit=80, include="crop", **every).status_code == 200


def test_the_faces_of_a_photo_share_the_candidates_of_a_search(
    api: Api, faces: GalleryWriter, enrolled: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one person has most of the faces, each face of a photo was compared with 65,536 of them one by one."""
    counts, search = list[int](), ServedModel.search

    def note_candidates(served: ServedModel, queries: Rows, k: int, *others: Any) -> Any:
        counts.append(len(queries) * k)
        return search(served, queries, k, *others)

    crowd = np.repeat(enrolled["rows"][:1], 300, 0)
    faces.add({LBP_MODEL: crowd}, ["d0"] * len(crowd))
    two = encoded(np.concatenate([synthetic_faces.draw(synthetic_faces.person(0), s, strength=0.3) for s in (0, 1)], 1))
    monkeypatch.setattr(candidates, "MAX_CANDIDATES", 200)
    monkeypatch.setattr(ServedModel, "search", note_candidates)
    assert by_photo(api, two, face_selection="all", group_by="subject").status_code == 200
    assert max(counts) == 200


def test_only_the_faces_that_are_searched_for_are_aligned(
    api: Api, faces: GalleryWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    aligned, align = list[object](), FrontEnd.align

    def note_face(front_end: FrontEnd, image: Any, detection: Any) -> Any:
        aligned.append(detection)
        return align(front_end, image, detection)

    two = np.concatenate([synthetic_faces.draw(synthetic_faces.person(p), 0, strength=0.3) for p in (1, 4)], axis=1)
    by_photo(api, encoded(two))
    monkeypatch.setattr(FrontEnd, "align", note_face)
    assert len(by_photo(api, encoded(two)).json()["faces"]) == len(aligned) == 1
    aligned.clear()
    assert len(by_photo(api, encoded(two), face_selection="all").json()["faces"]) == len(aligned) == 2


@pytest.mark.parametrize(
    "usual",
    [{"limit": 3}, {"limit": 2, "aligned": "true"}, {"fmr": 0.2}, {"face_selection": "all", "group_by": "face"}],
)
def test_usual_parameters_are_read_as_by_the_framework(
    api: Api, faces: GalleryWriter, monkeypatch: pytest.MonkeyPatch, usual: dict[str, Any]
) -> None:
    url, files = f"/v1/collections/{api.staff}/search", {"file": ("photo.png", photo(3, 1))}
    by_photo(api, photo(3, 1))

    def ask(params: dict[str, Any]) -> tuple[int, Any]:
        answer = api.post(url, files=files, params=params)
        return answer.status_code, answer.json() | {"request_id": None}

    directly = ask(usual)
    monkeypatch.setattr(photo_routes, "parse_usual", lambda *_: None)
    assert ask(usual) == directly


@pytest.mark.parametrize("query", ["limit=0", "limit=", "limit=1&limit=2", "aligned=perhaps", "sort=1", "task=age"])
def test_wrong_parameters_of_a_photo_are_refused_as_by_the_framework(
    api: Api, faces: GalleryWriter, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    files = {"file": ("photo.png", photo(3, 1))}
    by_photo(api, photo(3, 1))

    def ask(collection: str, change: str) -> tuple[int, Any]:
        url, headers = f"/v1/collections/{collection}/search?{query}", {"x-change-number": change}
        answer = api.post(url, files=files, headers=headers)
        return answer.status_code, answer.json() | {"request_id": None}

    requests = [(api.staff, "0"), ("no such", "0"), (api.staff, "many"), ("nobody", "0")]
    directly = [ask(*request) for request in requests]
    monkeypatch.setattr(photo_routes, "parse_usual", lambda *_: None)
    assert [ask(*request) for request in requests] == directly


def test_crops_are_returned_on_request(api: Api, faces: GalleryWriter, enrolled: dict[str, Any]) -> None:
    with writing(faces.resources.database) as session:
        rows = [session.get_one(Face, pk) for pk in faces.pks]
        stored = [
            (Blobs.crop(f.image_id, f.number, "grey"), images.encode_png(c))
            for f, c in zip(rows, enrolled["grey"], strict=True)
        ]
    faces.resources.blobs.put(api.staff, stored[:6])
    answer = by_photo(api, photo(1, 0), include="crop", limit=12).json()["faces"][0]
    assert images.decode_png(base64.b64decode(answer["crop"])).shape == (170, 100)
    assert [m["crop"] is not None for m in answer["matches"]].count(True) == 6
    best = base64.b64decode(answer["matches"][0]["crop"])
    assert (images.decode_png(best) == enrolled["grey"][2]).all()


def keep_crops(faces: GalleryWriter, crops: Crops, count: int) -> None:
    """Store the crops of the first `count` faces."""
    with writing(faces.resources.database) as session:
        rows = [session.get_one(Face, pk) for pk in faces.pks]
        stored = [(Blobs.crop(f.image_id, 0, "grey"), images.encode_png(c)) for f, c in zip(rows, crops, strict=True)]
    faces.resources.blobs.put(faces.collection, stored[:count])


def test_an_explanation_sums_to_the_distance_and_locates_a_changed_region(
    api: Api, faces: GalleryWriter, enrolled: dict[str, Any]
) -> None:
    keep_crops(faces, enrolled["grey"], 12)
    changed = enrolled["grey"][5].copy()
    changed[90:100, 40:50] = np.random.default_rng(0).integers(0, 255, (10, 10))
    answer = by_photo(api, encoded(changed), aligned=True, include="explanation", limit=12)
    assert len(matches(answer)) == 12
    for match in matches(answer):
        explanation = match["explanation"]
        [part] = explanation["parts"]
        assert (part["task"], part["descriptor"]) == ("identity", "lbp")
        assert part["grid"] == {"crop": "grey", "rows": 17, "columns": 10, "size": 10}
        assert np.shape(part["cells"]) == (17, 10)
        assert np.sum(part["cells"]) + explanation["rest"] == pytest.approx(explanation["distance"], rel=1e-12)
        assert explanation["distance"] == pytest.approx(match["distance"], rel=1e-4, abs=1e-4)
        assert "unexplained" not in match
    nearest = np.array(matches(answer)[0]["explanation"]["parts"][0]["cells"])
    assert np.unravel_index(nearest.argmax(), nearest.shape) == (9, 4)
    assert (nearest[:7] == 0).all()


def test_an_enrolled_face_is_explained_unless_its_crop_is_missing(
    api: Api, faces: GalleryWriter, enrolled: dict[str, Any]
) -> None:
    with writing(faces.resources.database) as session:
        face_id = session.get_one(Face, faces.pks[0]).face_id
    url, params = (
        f"/v1/collections/{api.staff}/faces/{face_id}/search",
        {"include": "explanation", "limit": 11, "group_by": "face"},
    )
    without = matches(wait_until_indexed(lambda: api.post(url, params=params), api))
    assert {m["unexplained"] for m in without} == {"the stored crop of the query face is missing"}
    keep_crops(faces, enrolled["grey"], 7)
    returned = matches(api.post(url, params=params))
    explanations = [m["explanation"] for m in returned]
    assert sum(t is not None for t in explanations) == 6
    assert {m.get("unexplained") for m in returned} == {None, "the stored crop of this face is missing"}
    assert all(
        t["distance"] == pytest.approx(m["distance"], rel=1e-4)
        for m, t in zip(returned, explanations, strict=True)
        if t
    )


def test_a_search_by_embedding_cannot_be_explained(api: Api, gallery: GalleryWriter) -> None:
    answer = by_vector(api, ROWS[0], include="explanation")
    assert answer.status_code == 422
    assert "a vector has no crop" in answer.json()["detail"]


def test_an_aligned_face_is_used_without_detection(api: Api, faces: GalleryWriter, enrolled: dict[str, Any]) -> None:
    answer = by_photo(api, encoded(enrolled["grey"][5]), aligned=True)
    assert matches(answer)[0]["distance"] < 1e-3
    assert subjects(answer)[0] == "d2"


UNSEEN = {
    "no face": (encoded(np.full((200, 200, 3), 128, np.uint8)), "NoFace"),
    "no picture": (b"no picture", "InvalidImageFormat"),
    "empty": (b"", "InvalidImageFormat"),
    "cut short": (photo(0, 0)[:5000], "InvalidImageFormat"),
    "too many pixels": (encoded(np.zeros((7200, 7200), np.uint8)), "ImageTooLarge"),
}


def test_a_photo_that_cannot_be_searched_is_refused_with_the_reason(api: Api, faces: GalleryWriter) -> None:
    for what, (data, code) in UNSEEN.items():
        answer = by_photo(api, data)
        assert (answer.status_code, answer.json()["code"]) == (422, code), what


def test_a_search_without_a_photo_is_refused_with_422(api: Api, faces: GalleryWriter) -> None:
    assert api.post(f"/v1/collections/{api.staff}/search").status_code == 422
    assert api.post(f"/v1/collections/{api.staff}/search", files={"photo": b"x"}).status_code == 422


def verify(api: Api, *photos: bytes, **fields: Any) -> httpx.Response:
    return api.post(
        "/v1/verify", files=[("file", ("p.png", p)) for p in photos], params={"collection": api.staff} | fields
    )


def test_two_photos_can_be_verified(api: Api, faces: GalleryWriter) -> None:
    by_photo(api, photo(0, 0))
    same, other = verify(api, photo(1, 0), photo(1, 1)).json(), verify(api, photo(1, 0), photo(5, 0)).json()
    assert same["distance"] < other["distance"]
    assert same["similarity"] is other["similarity"] is None, "nothing is calibrated"
    assert same["face_id"] is None
    assert len(same["bounding_boxes"]) == 2
    assert same["passes"] is None, "nothing is calibrated"
    assert verify(api, photo(1, 0), photo(1, 0)).json()["distance"] == pytest.approx(0, abs=1e-3)


def test_base64_photos_and_uploaded_photos_are_verified_alike(api: Api, faces: GalleryWriter) -> None:
    by_photo(api, photo(0, 0))
    params, two = {"collection": api.staff}, [text(photo(1, 0)), text(photo(5, 0))]
    by_json = api.post("/v1/verify", params=params, json={"images": two})
    assert by_json.json() == verify(api, photo(1, 0), photo(5, 0)).json()
    one = api.post("/v1/verify", params=params | {"subject": "d1"}, json={"images": two[:1]})
    assert one.json() == verify(api, photo(1, 0), subject="d1").json()
    for wrong in ([], two + two, text(photo(1, 0)), [1, 2]):
        assert api.post("/v1/verify", params=params, json={"images": wrong}).status_code == 422
    assert verify(api, *[photo(1, 0)] * 3).status_code == 422


def test_a_photo_can_be_verified_against_a_face_or_a_subject(api: Api, faces: GalleryWriter) -> None:
    face_id = matches(by_photo(api, photo(4, 1), limit=1))[0]["face_id"]
    assert verify(api, photo(4, 1), face_id=face_id).json()["distance"] < 1e-3
    nearest = verify(api, photo(4, 1), subject="d4").json()
    assert (nearest["face_id"], nearest["distance"] < 1e-3) == (face_id, True)
    assert verify(api, photo(4, 1), subject="d0").json()["distance"] > nearest["distance"]


@pytest.mark.parametrize("count", [1, 3, 300])
def test_a_person_with_many_faces_is_verified_at_the_rate_of_all_of_them(count: int) -> None:
    """With the nearest of 300 faces, 13 % of strangers passed at a rate of 1 %."""
    draw = np.random.default_rng(0)
    scores = Scores(EUCLIDEAN, Calibration.fit(0.6 * draw.chisquare(8, 900) / 8, 16 * draw.chisquare(8, 90_000) / 8))
    threshold = make_pair_threshold(scores, 0.01, faces=count)
    nearest = (16 * draw.chisquare(8, (20_000, count)) / 8).min(1)
    assert 0.004 < (nearest <= threshold.distance).mean() < 0.013
    assert threshold.description is not None
    low, rate, high = (threshold.description[name] for name in ("low", "fmr", "high"))
    assert low is not None
    assert rate is not None
    assert high is not None
    assert low < rate <= 0.01 < high


def test_a_verification_counts_the_faces_of_the_person(api: Api, faces: GalleryWriter) -> None:
    face_id = matches(by_photo(api, photo(4, 1), limit=1))[0]["face_id"]
    draw = np.random.default_rng(0)
    faces.calibrate(LBP_MODEL, draw.chisquare(8, 900) / 80, 16 * draw.chisquare(8, 90_000) / 8)
    until(lambda: verify(api, photo(4, 1), face_id=face_id).json()["calibrated"])
    of_face = verify(api, photo(4, 1), face_id=face_id, fmr=0.01).json()["threshold"]
    of_person = verify(api, photo(4, 1), subject="d4", fmr=0.01).json()["threshold"]
    assert of_person["distance"] < of_face["distance"]
    assert of_person["fmr"] == pytest.approx(of_face["fmr"], rel=0.1)


def test_a_photo_is_not_verified_as_a_person_whom_a_label_rules_out(api: Api, faces: GalleryWriter) -> None:
    first = matches(by_photo(api, photo(4, 1), limit=1))[0]["face_id"]
    other = verify(api, photo(4, 1), subject="d0").json()
    assert (other["passes"], other["corrected_by"]) == (None, [])
    with reading(faces.resources.database) as session:
        pks = dict(session.execute(select(Face.face_id, Face.pk).where(Face.collection_id == api.staff)).all())
    faces.label([(pks[first], pks[other["face_id"]])], same=False)
    by_photo(api, photo(0, 0))
    other = verify(api, photo(4, 1), subject="d0").json()
    assert (other["passes"], [c["effect"] for c in other["corrected_by"]]) == (False, ["rejected"])
    assert verify(api, photo(4, 1), subject="d4").json()["corrected_by"] == []


def test_an_incomplete_verification_is_refused_with_what_is_missing(api: Api, faces: GalleryWriter) -> None:
    by_photo(api, photo(0, 0))
    assert verify(api, photo(0, 0)).status_code == 422
    assert verify(api, photo(0, 0), photo(0, 1), subject="d0").status_code == 422
    assert verify(api, photo(0, 0), subject="nobody").status_code == 404
    assert verify(api, photo(0, 0), face_id="none").status_code == 404
    assert verify(api, photo(0, 0), photo(0, 1), collection="nobody").status_code == 404
    assert verify(api, photo(0, 0), photo(0, 1), fmr=0.01).json()["code"] == "NotCalibrated"
    GalleryWriter(faces.resources, f"{api.staff}-2").make(MODEL)
    two = [("file", photo(0, 0)), ("file", photo(0, 1))]
    assert "name the collection" in api.post("/v1/verify", files=two).json()["detail"]
    with writing(faces.resources.database) as session:
        bound = {"Authorization": f"Bearer {keys.create_key(session, 'reader', 'bound', (api.staff,))[1]}"}
    assert api.post("/v1/verify", files=two, headers=bound).status_code == 200, "the only one that this key may use"


def test_a_key_for_another_collection_cannot_verify(api: Api, faces: GalleryWriter) -> None:
    with writing(faces.resources.database) as session:
        bound = {"Authorization": f"Bearer {keys.create_key(session, 'reader', 'bound', ('other',))[1]}"}
    two = [("file", photo(0, 0)), ("file", photo(0, 1))]
    params = {"collection": api.staff}
    assert api.post("/v1/verify", files=two, params=params, headers=bound).status_code == 404
