"""Searches by several tasks at once, compared with a ranking that this test computes from all distances."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sqlalchemy import insert

from app.db.session import writing
from app.db.tables import Embedding, Face, Task
from app.resources import Resources
from app.search import enrolled_faces
from app.search.candidates import count_candidates
from app.search.criteria import Criteria, Criterion, search_mix
from app.serving.deployments import SearchEffort
from app.serving.faces.face_table import EMPTY, FaceTable
from app.storage.blob_store import Blobs
from ml import images, indexes
from ml.calibration import Calibration
from ml.distances import EUCLIDEAN
from ml.model import Model
from ml.types import Rows
from tests.app.test_search import Api, encoded, matches, reader, wait_until_indexed
from tests.rows import GalleryWriter, make_model, people

MIX = "identity:0.7,age:0.3"


def squared_distances(rows: Rows) -> NDArray[np.float64]:
    """(n, n) squared distances."""
    distances: NDArray[np.float64] = cdist(rows, rows, "sqeuclidean")
    return distances


def calibrated(name: str, task: str, rows: Rows) -> Model:
    """Return the model with a calibration of its own, as a training makes it."""
    made = make_model(name, rows.shape[1], seed=5)
    made.embedder.tasks = (task,)
    strangers = squared_distances(rows)[np.triu_indices(len(rows), 4)][::10]
    return replace(made, calibrations={task: Calibration.fit(np.linspace(0, 1, 50), strangers)})


FACES, SUBJECTS = people(100, 4)
AGES = np.random.default_rng(3).normal(scale=4, size=(400, 5)).astype(np.float32)
WHO, AGE = calibrated("m-who", "identity", FACES), calibrated("m-age", "age", AGES)


@pytest.fixture(scope="module")
def client(lasting: Resources) -> Iterator[Api]:
    with writing(lasting.database) as session:
        session.get_one(Task, "age").enabled = True
    with reader(lasting) as opened:
        yield opened


@pytest.fixture
def api(client: Api) -> Api:
    client.staff = f"staff-{uuid4().hex[:8]}"
    return client


def collection(
    resources: Resources, api: Api, who: Rows, ages: Rows, subjects: list[str], ageless: int = -1
) -> GalleryWriter:
    """Make a collection with a deployment of both tasks. ageless: a face without an embedding for age"""
    made = GalleryWriter(resources, api.staff).make(WHO)
    metadata = [{"even": i % 2 == 0} for i in range(len(subjects))]
    made.add({WHO.id: who}, subjects, metadata=metadata)
    with writing(resources.database) as session:
        resources.models.keep(session, AGE)
        known_as = {"model_id": AGE.id, "task": "age"}
        rows = [known_as | {"face_pk": pk, "vector": row.tobytes()} for pk, row in zip(made.pks, ages, strict=True)]
        session.execute(insert(Embedding), [row for i, row in enumerate(rows) if i != ageless])
    made.make(AGE, task="age")
    return made


@pytest.fixture(scope="module")
def hundred(lasting: Resources, client: Api) -> GalleryWriter:
    """A hundred people with four faces each, whose ages have nothing to do with who they are. No test changes them."""
    client.staff = "hundred"
    return collection(lasting, client, FACES, AGES, SUBJECTS)


@pytest.fixture
def gallery(hundred: GalleryWriter, api: Api) -> GalleryWriter:
    api.staff = hundred.collection
    return hundred


def face_ids(gallery: GalleryWriter) -> list[str]:
    with writing(gallery.resources.database) as session:
        return [session.get_one(Face, pk).face_id for pk in gallery.pks]


def search(api: Api, face_id: str, task: str = MIX, **params: Any) -> httpx.Response:
    url = f"/v1/collections/{api.staff}/faces/{face_id}/search"
    return wait_until_indexed(lambda: api.post(url, params={"group_by": "face", "task": task} | params), api)


def mixed(answer: httpx.Response) -> NDArray[np.float64]:
    """(n, n) distances by what the answer says of its weights and scales."""
    weights = {t["task"]: t["share"] / t["scale"] for t in answer.json()["tasks"]}
    return weights["identity"] * squared_distances(FACES) + weights["age"] * squared_distances(AGES)


def test_a_mixed_search_ranks_by_the_weighted_sum_of_distances(api: Api, gallery: GalleryWriter) -> None:
    ids = face_ids(gallery)
    for query in (0, 57, 399):
        answer = search(api, ids[query], limit=7)
        whole = mixed(answer)
        others = np.delete(np.argsort(whole[query], kind="stable"), 0)[:7]
        assert [m["face_id"] for m in matches(answer)] == [ids[i] for i in others]
        np.testing.assert_allclose([m["distance"] for m in matches(answer)], whole[query, others], rtol=1e-4)
        for match, i in zip(matches(answer), others, strict=True):
            assert match["distances"]["identity"] == pytest.approx(squared_distances(FACES)[query, i], rel=1e-4)
            assert match["distances"]["age"] == pytest.approx(squared_distances(AGES)[query, i], rel=1e-4)
        assert answer.json()["complete"] is True


def test_a_mixed_search_names_faces_as_the_task_that_is_ahead_has_them() -> None:
    def served(faces: FaceTable | None) -> Any:
        return SimpleNamespace(faces=faces)

    old, new = replace(EMPTY, change=3), replace(EMPTY, change=4)
    assert Criteria((Criterion(served(old)), Criterion(served(new)))).faces is new
    assert Criteria((Criterion(served(new)), Criterion(served(old)))).faces is new
    assert Criteria((Criterion(served(new)), Criterion(served(None)))).faces is None


def test_a_task_other_than_identity_names_nobody(api: Api, gallery: GalleryWriter) -> None:
    query = face_ids(gallery)[0]
    by_identity = search(api, query, task="identity").json()
    assert (by_identity["threshold"]["kind"], by_identity["faces"][0]["decision"] is None) == ("fpir", False)
    body = search(api, query, task="age").json()
    face = body["faces"][0]
    assert body["threshold"] is face["decision"] is face["subject"] is None
    assert [(m["passes"], m["person_distance"] is None) for m in face["matches"]] == [(None, False)] * 10
    assert (body["calibrated"], face["matches"][0]["similarity"] is None) == (True, False)
    filtered = search(api, query, task="age", fmr=0.05).json()
    assert (filtered["threshold"]["kind"], filtered["faces"][0]["decision"]) == ("fmr", None)
    assert {m["passes"] for m in filtered["faces"][0]["matches"]} == {True}
    refused = search(api, query, task="age", fpir=0.01)
    assert (refused.status_code, "give fmr instead" in refused.text) == (422, True)


def test_a_mixed_search_states_its_weights_and_gives_no_probability(api: Api, gallery: GalleryWriter) -> None:
    answer = search(api, face_ids(gallery)[0], limit=3)
    body, match = answer.json(), matches(answer)[0]
    assert (body["task"], body["model"], body["calibrated"]) == (MIX, "m-who,m-age", False)
    face = body["faces"][0]
    assert body["threshold"] is face["decision"] is face["subject"] is None
    assert match["similarity"] is match["probability"] is match["person_distance"] is match["passes"] is None
    assert [(t["task"], t["share"], t["model"], t["m"]) for t in body["tasks"]] == [
        ("identity", 0.7, "m-who", 1),
        ("age", 0.3, "m-age", 1),
    ]
    total = sum(t["share"] * match["distances"][t["task"]] / t["scale"] for t in body["tasks"])
    assert match["distance"] == pytest.approx(total, rel=1e-5)
    assert answer.headers["X-Model"] == "m-who,m-age"
    assert answer.headers["X-Index-Generation"] == body["index_generation"]


def test_a_larger_weight_makes_a_task_dominate_the_ranking(api: Api, gallery: GalleryWriter) -> None:
    ids = face_ids(gallery)
    by_one, by_other = (matches(search(api, ids[8], task, limit=5)) for task in ("identity", "age"))
    led = matches(search(api, ids[8], "identity:1000,age:0.001", limit=3))
    assert [m["face_id"] for m in led] == [m["face_id"] for m in by_one[:3]]
    led = matches(search(api, ids[8], "identity:0.0001,age:5", limit=3))
    assert [m["face_id"] for m in led] == [m["face_id"] for m in by_other[:3]]
    even = search(api, ids[8], "identity,age", limit=1)
    assert [t["share"] for t in even.json()["tasks"]] == [0.5, 0.5]
    assert matches(even)[0]["face_id"] == ids[int(np.argsort(mixed(even)[8])[1])]
    alone = search(api, ids[8], "identity:0.2", limit=5).json()
    assert [m["face_id"] for m in alone["faces"][0]["matches"]] == [m["face_id"] for m in by_one]
    assert (alone["task"], alone["calibrated"]) == ("identity", True)
    assert "tasks" not in alone


def test_filters_and_grouping_apply_to_a_mixed_search(api: Api, gallery: GalleryWriter) -> None:
    ids = face_ids(gallery)
    answer = search(api, ids[1], limit=5, filter='{"metadata": {"even": true}}')
    order = [i for i in np.argsort(mixed(answer)[1], kind="stable") if i % 2 == 0][:5]
    assert [m["face_id"] for m in matches(answer)] == [ids[i] for i in order]
    answer = search(api, ids[1], limit=100, group_by="subject")
    whole = mixed(answer)[1]
    nearest = {SUBJECTS[i]: whole[i] for i in np.argsort(-whole) if i != 1}
    assert [m["subject"]["id"] for m in matches(answer)] == sorted(nearest, key=nearest.__getitem__)
    every = search(api, ids[1], limit=4096)
    assert (len(matches(every)), every.json()["complete"]) == (399, True)


def test_a_face_without_an_embedding_for_a_task_is_left_out(lasting: Resources, api: Api) -> None:
    by_identity = np.argsort(squared_distances(FACES)[5])
    ids = face_ids(collection(lasting, api, FACES, AGES, SUBJECTS, ageless=int(by_identity[1])))
    answer = search(api, ids[5], "identity:99,age:0.0001", limit=3)
    assert [m["face_id"] for m in matches(answer)] == [ids[i] for i in by_identity[2:5]]
    assert len(matches(search(api, ids[5], limit=4096))) == 398


UNMIXED: list[tuple[dict[str, Any], str]] = [
    ({"task": MIX, "threshold": 50}, "a mix of tasks is not calibrated"),
    ({"task": MIX, "fmr": 0.01}, "a mix of tasks is not calibrated"),
    ({"task": "identity,identity:2"}, "name each task once"),
    ({"task": "identity:0,age"}, "a weight must be above 0"),
    ({"task": "identity:-1,age"}, "pattern"),
    ({"task": "identity:nan,age"}, "pattern"),
    ({"task": "identity,"}, "pattern"),
    ({"task": ",".join(f"t{i}" for i in range(9))}, "at most 8 tasks"),
]


def test_an_invalid_mix_is_refused_with_the_reason(api: Api, gallery: GalleryWriter) -> None:
    face_id = face_ids(gallery)[0]
    for params, reason in UNMIXED:
        answer = search(api, face_id, **params)
        assert (answer.status_code, reason in answer.text) == (422, True), answer.text
    assert search(api, face_id, "identity,height").json()["code"] == "UnknownTask"
    body = {"vector": FACES[0].tolist()}
    by_vector = api.post(f"/v1/collections/{api.staff}/search:by-embedding", params={"task": MIX}, json=body)
    assert (by_vector.status_code, "belongs to one task" in by_vector.text) == (422, True)


def test_a_task_without_a_calibration_cannot_be_weighted(lasting: Resources, api: Api) -> None:
    bare = make_model("m-bare")
    GalleryWriter(lasting, api.staff).make(bare).add({bare.id: FACES[:8]}, SUBJECTS[:8])
    GalleryWriter(lasting, api.staff).make(AGE, task="age")
    answer = search(api, "none")
    assert (answer.status_code, answer.json()["code"]) == (409, "NotCalibrated")
    assert "'identity'" in answer.json()["detail"]


def test_a_disabled_task_cannot_be_searched_by(api: Api, gallery: GalleryWriter) -> None:
    face_id = face_ids(gallery)[0]
    assert search(api, face_id).status_code == 200
    try:
        with writing(gallery.resources.database) as session:
            session.get_one(Task, "age").enabled = False
        assert search(api, face_id).json()["code"] == "TaskDisabled"
        assert search(api, face_id, "age").json()["code"] == "TaskDisabled"
        assert search(api, face_id, "identity").status_code == 200
        photos = [("file", encoded(np.full((170, 100), grey, np.uint8))) for grey in (80, 120)]
        params = {"collection": api.staff, "task": "age", "aligned": "true"}
        assert api.post("/v1/verify", params=params, files=photos).json()["code"] == "TaskDisabled"
    finally:
        with writing(gallery.resources.database) as session:
            session.get_one(Task, "age").enabled = True


def test_the_parts_of_all_tasks_sum_to_the_distance_of_the_mix(lasting: Resources, api: Api) -> None:
    """The search is by a photo, which each task's own model describes and embeds."""
    crops = np.random.default_rng(0).integers(0, 255, (8, 170, 100), dtype=np.uint8)
    rows = WHO.describe({"grey": crops})
    made = collection(lasting, api, WHO.embed(rows), AGE.embed(rows, "age"), [f"c{i}" for i in range(8)])
    with writing(lasting.database) as session:
        named = [Blobs.crop(session.get_one(Face, pk).image_id, 0, "grey") for pk in made.pks]
    lasting.blobs.put(api.staff, [(name, images.encode_png(crop)) for name, crop in zip(named, crops, strict=True)])
    search(api, face_ids(made)[0])
    url, params = f"/v1/collections/{api.staff}/search", {"task": MIX, "include": "explanation", "aligned": True}
    answer = api.post(url, params=params, files={"file": encoded(crops[3])})
    assert matches(answer)[0]["face_id"] == face_ids(made)[3]
    for match in matches(answer)[1:]:
        explanation = match["explanation"]
        assert [p["task"] for p in explanation["parts"]] == ["identity", "age"]
        assert explanation["distance"] == pytest.approx(match["distance"], rel=1e-4)
        cells = sum(np.sum(part["cells"]) for part in explanation["parts"])
        assert cells + explanation["rest"] == pytest.approx(explanation["distance"], rel=1e-12)


@pytest.mark.parametrize("k", [5, 300, 1500])
def test_faces_within_the_bound_are_the_nearest_ones(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every list of an index with cells ends at k; the faces that it leaves out are farther than the bound."""
    draw, ids = np.random.default_rng(7), np.arange(3000)
    sides = [draw.normal(size=(3000, dim)).astype(np.float32) for dim in (6, 4)]

    def served(rows: Rows) -> Any:
        index = indexes.build(ids, rows, p=16)
        return SimpleNamespace(
            index=index,
            rows=rows,
            face_count=len(rows),
            search=lambda q, k, effort, allowed: index.search(q, k, m=effort.m, allowed=allowed),
        )

    monkeypatch.setattr(enrolled_faces, "read_embeddings", lambda _, model, pks: {pk: model.rows[pk] for pk in pks})
    criteria = Criteria(
        tuple(Criterion(served(rows), share, 2.0) for rows, share in zip(sides, (0.6, 0.4), strict=True))
    )
    queries = [rows[:20] for rows in sides]
    mixed = search_mix(None, criteria, queries, k, [SearchEffort(16)] * 2, None)  # type: ignore[arg-type]
    whole = sum(share / 2 * EUCLIDEAN.distances(rows[:20], rows) for rows, share in zip(sides, (0.6, 0.4), strict=True))
    for q in range(20):
        is_certain = mixed.distances[q] < mixed.bound[q]
        nearer = np.flatnonzero(whole[q] < mixed.bound[q] * (1 - 1e-5))
        assert set(nearer.tolist()) <= set(mixed.ids[q][is_certain].tolist())
        np.testing.assert_allclose(
            mixed.distances[q][is_certain], np.sort(whole[q])[: is_certain.sum()], rtol=1e-4, atol=1e-5
        )
    many = (mixed.distances < mixed.bound[:, None]).sum(axis=1).mean()
    assert many >= {5: 1, 300: 3, 1500: 100}[k], "the bound lets something through"


@pytest.mark.parametrize(
    ("tasks", "queries", "count"), [(1, 1, 65_536), (2, 1, 16_384), (8, 1, 4_096), (1, 100, 655), (8, 100, 48)]
)
def test_tasks_and_the_faces_of_a_photo_share_the_candidates(tasks: int, queries: int, count: int) -> None:
    """Eight tasks read 917,000 stored embeddings for one face, each for the candidates of all others."""
    assert count_candidates(tasks, queries) == count
