"""Deployments over HTTP: read, publish and roll back."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert, select

from app.db.session import reading, writing
from app.db.tables import Deployment, Embedding, Job, StoredCompensation, Task
from app.deps import pointer_session
from app.errors import Stale
from app.publishing import pointers, requests
from app.publishing.pointers import MoveReason
from app.publishing.requests import PublishRequest
from app.serving.follower import IndexFollower
from app.storage.model_cache import LBP_MODEL
from ml.compensation import fit_compensation
from tests.databases import remove_test_data
from tests.gallery import enrol
from tests.rows import GalleryWriter, make_model, people
from tests.service import Service
from workers.handlers import publish as publishing

BASE = "/v1/collections/c/deployments/identity"
IDENTITY = ("c", "identity")
on_sqlite = pytest.mark.parametrize("lasting_service", ["sqlite"], indirect=True)


@pytest.fixture
def service(lasting_service: Service) -> Iterator[Service]:
    """The service of the module, without what the tests before have written."""
    yield lasting_service
    remove_test_data(lasting_service.resources)


def stocked(service: Service, *models: str) -> None:
    service.client.put("/v1/collections/c")
    enrol(service.resources, "c", range(8), shots=2)
    for seed, name in enumerate(models):
        with writing(service.resources.database) as session:
            service.resources.models.keep(session, make_model(name, seed=seed))


def publish(service: Service, model: str, **fields: Any) -> dict[str, Any]:
    """Publish against the gate, which needs more than eight people; these tests are about pointers."""
    body = {"model": model, "override": True, "reason": "a test of the pointers"}
    job = service.wait(service.client.post(f"{BASE}:publish", json=body, **fields))
    assert job["state"] == "succeeded", job["problem"]
    return job


def test_a_deployment_shows_its_pointers_and_its_version_as_etag(service: Service) -> None:
    stocked(service, "m1")
    answer = service.client.get(BASE)
    assert answer.headers["ETag"] == '"1"'
    assert (answer.json()["champion"], answer.json()["previous"], answer.json()["version"]) == (LBP_MODEL, None, 1)
    assert publish(service, "m1")["result"]["version"] == 2
    shown = service.client.get(BASE).json()
    assert (shown["champion"], shown["previous"], shown["cells"]) == ("m1", LBP_MODEL, 1)
    assert [point["m"] for point in shown["curve"]] == [1]
    assert [t["requested_fmr"] for t in shown["thresholds"]] == [0.1, 0.01, 0.001, 0.0001]
    assert shown["measurements"]["m1"]["thresholds"] == shown["thresholds"]
    assert shown["thresholds"][0]["low"] <= shown["thresholds"][0]["fmr"] <= shown["thresholds"][0]["high"]
    [entry] = shown["history"]
    assert (entry["model"], entry["by"]) == ("m1", "test")
    listed = service.client.get("/v1/collections/c/deployments").json()["deployments"]
    assert [d["task"] for d in listed] == ["identity"]


def test_the_default_rate_of_strangers_named_can_be_set(service: Service) -> None:
    stocked(service)
    assert service.client.get(BASE).json()["default_fpir"] == 0.01
    for wrong in ({"default_fpir": 0}, {"default_fpir": 0.6}, {"default_fpir": "x"}, {"champion": LBP_MODEL}, {}):
        assert service.client.patch(BASE, json=wrong).status_code == 422
    answer = service.client.patch(BASE, json={"default_fpir": 0.05})
    assert (answer.status_code, answer.json()["default_fpir"]) == (200, 0.05)
    assert answer.headers["ETag"] == '"1"', "no pointer has moved"
    assert service.client.patch("/v1/collections/nobody/deployments/identity", json={"default_fpir": 0.05}).is_error
    assert service.client.get(BASE).json()["default_fpir"] == 0.05


def test_a_rollback_is_complete_when_it_is_answered(service: Service) -> None:
    stocked(service, "m1")
    publish(service, "m1")
    start = time.monotonic()
    answer = service.client.post(f"{BASE}:rollback", json={"reason": "complaints"})
    assert time.monotonic() - start < 5, "it takes milliseconds on a quiet machine"
    assert answer.status_code == 200
    assert (answer.json()["champion"], answer.json()["previous"]) == (LBP_MODEL, "m1")
    face = service.client.get("/v1/collections/c/faces").json()["faces"][0]["face_id"]
    assert service.client.post(f"/v1/collections/c/faces/{face}/search").json()["model"] == LBP_MODEL
    assert service.client.get(BASE).json()["history"][-1]["reason"] == "complaints"
    assert service.client.post(f"{BASE}:rollback").json()["champion"] == "m1"


def test_a_rollback_waits_for_the_index_of_its_own_collection(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, goes_on = IndexFollower.step, threading.Event()
    monkeypatch.setattr(IndexFollower, "step", lambda follower: goes_on.wait(10) and step(follower))
    monkeypatch.setattr(pointer_session, "SWAP_WAIT_SECONDS", 30.0)
    goes_on.set()
    stocked(service, "m1")
    publish(service, "m1")
    versions = [service.client.post(f"{BASE}:rollback").json()["version"] for _ in range(2)]
    assert versions == [3, 4]
    goes_on.clear()  # a collection of the same name was deleted, which the index still serves at a later version
    remove_test_data(service.resources)
    stocked(service, "m1")
    publish(service, "m1")
    threading.Timer(0.3, goes_on.set).start()
    assert service.client.post(f"{BASE}:rollback").json()["version"] == 3
    face = service.client.get("/v1/collections/c/faces").json()["faces"][0]["face_id"]
    assert service.client.post(f"/v1/collections/c/faces/{face}/search").json()["model"] == LBP_MODEL


def test_a_model_that_served_before_is_published_at_once(service: Service) -> None:
    stocked(service, "m1", "m2")
    for model in ("m1", "m2"):
        publish(service, model)
    assert service.client.post(f"{BASE}:publish", json={"model": "m2"}).json()["version"] == 3
    answer = service.client.post(f"{BASE}:publish", json={"model": "m1"})
    assert (answer.status_code, answer.json()["champion"], answer.headers["ETag"]) == (200, "m1", '"4"')


@on_sqlite
def test_a_model_whose_corrections_an_erasure_emptied_is_measured_before_it_serves_again(service: Service) -> None:
    stocked(service, "m1", "m2", "m3")
    for model in ("m1", "m2"):
        publish(service, model)
    data = fit_compensation(people(4, 2)[0], np.repeat(["", "gate"], 4)).to_bytes()
    with writing(service.resources.database) as session:
        session.add(StoredCompensation(collection_id="c", task="identity", model_id="m1", version=1, data=data))
        deployment = session.get_one(Deployment, IDENTITY)
        measured = deployment.measurements["m1"] | {"compensation": 1}
        deployment.measurements = deployment.measurements | {"m1": measured}
    face = service.client.get("/v1/collections/c/faces").json()["faces"][0]["face_id"]
    service.client.delete(f"/v1/collections/c/faces/{face}").raise_for_status()
    with reading(service.resources.database) as session:
        assert not session.get_one(Deployment, IDENTITY).measurements["m1"].keys() & {"calibration", "open_set"}
    assert service.wait(service.client.post(f"{BASE}:rollback"))["state"] == "succeeded"
    shown = service.client.get(BASE).json()
    assert (shown["champion"], shown["measurements"]["m1"]["compensation"]) == ("m1", 2)
    assert shown["measurements"]["m1"]["faces"] == 15


@on_sqlite
def test_corrections_of_a_model_that_leaves_the_pointers_are_emptied(service: Service) -> None:
    """They hold means of embeddings, and are measured again only for a champion."""
    stocked(service, "m1", "m2")
    publish(service, "m1")
    data = fit_compensation(people(4, 2)[0], np.repeat(["", "gate"], 4)).to_bytes()
    with writing(service.resources.database) as session:
        for model in ("m1", LBP_MODEL):
            session.add(StoredCompensation(collection_id="c", task="identity", model_id=model, version=1, data=data))
    with writing(service.resources.database) as session:
        collection = pointers.lock_collection(session, "c")
        pointers.move_champion(session, collection, "m2", {"identity": {"faces": 8}}, MoveReason("a test"))
    with reading(service.resources.database) as session:
        stored = {one.model_id: (one.version, one.data) for one in session.scalars(select(StoredCompensation))}
    assert stored == {"m1": (1, data), LBP_MODEL: (2, b"")}


def publish_before_the_lock(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a gallery at version 5 whose next publication finds that m3 was published just before it got the lock."""
    models = {name: make_model(name, seed=seed) for seed, name in enumerate(("m1", "m2", "m3"))}
    rows, subjects = people(4, 2)
    gallery = GalleryWriter(service.resources, "c").make(models["m2"], previous=models["m1"])
    with writing(service.resources.database) as session:
        service.resources.models.keep(session, models["m3"])
    gallery.add(dict.fromkeys(models, rows), subjects)
    with writing(service.resources.database) as session:
        deployment = session.get_one(Deployment, IDENTITY)
        deployment.version, deployment.measurements = 5, {"m1": {"faces": 8}, "m2": {"faces": 8}}
    lock_collection = pointers.lock_collection

    def publish_and_lock(*chosen: Any) -> Any:
        monkeypatch.setattr(pointers, "lock_collection", lock_collection)
        with writing(service.resources.database) as session:
            collection = lock_collection(session, "c")
            pointers.move_champion(session, collection, "m3", {"identity": {"faces": 8}}, MoveReason("a job", job="j"))
        return lock_collection(*chosen)

    monkeypatch.setattr(pointers, "lock_collection", publish_and_lock)


@on_sqlite
def test_a_rollback_that_a_job_completes_is_of_the_version_that_was_named(service: Service) -> None:
    stocked(service, "m1")
    publish(service, "m1")
    with writing(service.resources.database) as session:
        session.delete(session.scalars(select(Embedding).where(Embedding.model_id == LBP_MODEL)).first())
    answer = service.client.post(f"{BASE}:rollback", headers={"If-Match": '"2"'})
    assert service.wait(answer)["state"] == "succeeded"
    with reading(service.resources.database) as session:
        assert session.get_one(Job, answer.json()["id"]).body["version"] == 2


@on_sqlite
def test_a_rollback_that_a_job_completes_does_not_replace_what_was_published_meanwhile(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    stocked(service, "m1", "m2", "m3")
    for model in ("m1", "m2"):
        publish(service, model)
    with writing(service.resources.database) as session:
        session.delete(session.scalars(select(Embedding).where(Embedding.model_id == "m1")).first())
    is_rollback_accepted, judge = threading.Event(), publishing.judge_publication
    monkeypatch.setattr(publishing, "judge_publication", lambda *of: is_rollback_accepted.wait(30) and judge(*of))
    body = {"model": "m3", "override": True, "reason": "a test of the pointers"}
    publication = service.client.post(f"{BASE}:publish", json=body)
    rollback = service.client.post(f"{BASE}:rollback")
    is_rollback_accepted.set()
    assert service.wait(publication)["state"] == "succeeded"
    ended = service.wait(rollback)
    assert (ended["state"], ended["problem"]["code"]) == ("failed", "PreconditionFailed")
    assert "the task 'identity' now has the champion m3 and the previous model m2" in ended["problem"]["detail"]
    shown = service.client.get(BASE).json()
    assert (shown["champion"], shown["previous"], shown["version"]) == ("m3", "m2", 4)


@on_sqlite
def test_a_rollback_embeds_the_faces_of_every_task_that_goes_back_with_it(service: Service) -> None:
    rows, who = people(2, 2)
    gallery = GalleryWriter(service.resources, "c")
    with writing(service.resources.database) as session:
        session.add(Task(name="pose"))
    for task in ("identity", "pose"):
        gallery.make(make_model("m2"), task, previous=make_model("m1"))
    gallery.add({"m1": rows, "m2": rows}, who)
    pose = [{"face_pk": pk, "task": "pose", "model_id": "m2", "vector": rows[0].tobytes()} for pk in gallery.pks]
    with writing(service.resources.database) as session:
        session.execute(insert(Embedding), pose)
    answer = service.client.post(f"{BASE}:rollback")
    assert answer.status_code == 202
    with reading(service.resources.database) as session:
        assert session.get_one(Job, answer.json()["id"]).body["tasks"] == ["identity", "pose"]


@pytest.mark.parametrize("lasting_service", ["postgresql"], indirect=True)  # SQLite has one writer at a time
@pytest.mark.parametrize("pointer", ["champion", "challenger"])
@pytest.mark.parametrize("version", [5, None])
def test_a_publication_that_waits_for_another_does_not_overtake_it(
    service: Service, monkeypatch: pytest.MonkeyPatch, pointer: Any, version: int | None
) -> None:
    publish_before_the_lock(service, monkeypatch)
    request = PublishRequest("m1", ("identity",), by="ann", version=version, pointer=pointer)
    with writing(service.resources.database) as session:
        if version is None:
            job = requests.request_publication(session, "c", request)
            assert job is not None, "m1 did not serve before, and was never measured beside m3"
        else:
            with pytest.raises(Stale, match="at version 6, not 5"):
                requests.request_publication(session, "c", request)
    with reading(service.resources.database) as session:
        kept = session.get_one(Deployment, IDENTITY)
    assert (kept.champion, kept.previous, kept.challenger, kept.version) == ("m3", "m2", None, 6)
    assert [(entry["model"], entry["version"], entry["job"]) for entry in kept.history] == [("m3", 6, "j")]


@pytest.mark.parametrize("lasting_service", ["postgresql"], indirect=True)
def test_pointers_are_moved_from_where_they_are_and_not_from_where_the_session_saw_them(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_before_the_lock(service, monkeypatch)
    with writing(service.resources.database) as session:
        seen = session.get_one(Deployment, IDENTITY)
        assert seen.version == 5
        collection = pointers.lock_collection(session, "c")
        moved = pointers.set_challenger(session, collection, "identity", "m1", MoveReason("ann"))
        assert (moved.version, [entry["version"] for entry in moved.history]) == (7, [6, 7])
    with writing(service.resources.database) as session:
        [moved] = pointers.roll_back(session, pointers.lock_collection(session, "c"), "identity", MoveReason("ann"))
        assert (moved.champion, moved.previous, moved.version) == ("m2", "m3", 8)


@on_sqlite
def test_a_rollback_without_a_previous_model_is_refused(service: Service) -> None:
    stocked(service)
    answer = service.client.post(f"{BASE}:rollback")
    assert (answer.status_code, answer.json()["code"]) == (409, "ResourceInUse")


@on_sqlite
def test_a_stale_etag_is_refused(service: Service) -> None:
    stocked(service, "m1")
    stale = {"If-Match": '"7"'}
    for verb, body in ((":publish", {"model": "m1"}), (":rollback", None)):
        answer = service.client.post(f"{BASE}{verb}", json=body, headers=stale)
        assert (answer.status_code, answer.json()["code"]) == (412, "PreconditionFailed")
    assert service.client.put(f"{BASE}/challenger", json={"model": "m1"}, headers=stale).status_code == 412
    before = service.client.get(BASE).json()
    assert service.client.patch(BASE, json={"default_fpir": 0.05}, headers=stale).status_code == 412
    assert service.client.get(BASE).json() == before
    current = {"If-Match": f'"{before["version"]}"'}
    assert service.client.patch(BASE, json={"default_fpir": 0.05}, headers=current).json()["default_fpir"] == 0.05
    assert service.client.post(f"{BASE}:rollback", headers={"If-Match": "soon"}).status_code == 422
    for empty in ("", '""'):
        refused = service.client.patch(BASE, json={"default_fpir": 0.1}, headers={"If-Match": empty})
        assert (refused.status_code, "must be the ETag" in refused.json()["detail"]) == (422, True)
    assert service.client.get(BASE).json()["default_fpir"] == 0.05
    assert publish(service, "m1", headers={"If-Match": '"1"'})["result"]["model"] == "m1"


@on_sqlite
def test_a_model_that_cannot_be_published_is_refused_with_the_reason(service: Service) -> None:
    stocked(service, "m1")
    client = service.client

    def refused(path: str, **body: Any) -> tuple[int, str]:
        answer = client.post(path, json=body)
        return answer.status_code, answer.json()["code"]

    assert refused(f"{BASE}:publish", model="none") == (404, "ResourceNotFound")
    assert refused("/v1/collections/none/deployments/identity:publish", model="m1") == (404, "ResourceNotFound")
    assert refused("/v1/collections/c/deployments/age:publish", model="m1") == (422, "UnknownTask")
    assert refused(f"{BASE}:publish", model="m1", override=True) == (422, "ReasonRequired")
    assert refused(f"{BASE}:publish") == (422, "InvalidParameter")
    assert client.get("/v1/collections/c/deployments/age").status_code == 404
    assert client.get("/v1/collections/none/deployments").status_code == 404


@on_sqlite
def test_only_administrators_can_publish(service: Service) -> None:
    stocked(service, "m1")
    operator = service.key("operator")
    for answer in (
        service.client.post(f"{BASE}:publish", json={"model": "m1"}, headers=operator),
        service.client.post(f"{BASE}:rollback", headers=operator),
        service.client.put(f"{BASE}/challenger", json={"model": "m1"}, headers=operator),
    ):
        assert answer.status_code == 403
    assert service.client.get(BASE, headers=service.key("reader", "other")).status_code == 404


@on_sqlite
def test_a_challenger_can_be_set_and_removed(service: Service) -> None:
    stocked(service, "m1")
    assert service.wait(service.client.put(f"{BASE}/challenger", json={"model": "m1"}))["state"] == "succeeded"
    shown = service.client.get(BASE).json()
    assert (shown["challenger"], "m1" in shown["measurements"]) == ("m1", True), (
        "its thresholds hold for another gallery"
    )
    assert service.client.put(f"{BASE}/challenger", json={"model": "m1"}).status_code == 200
    assert service.client.put(f"{BASE}/challenger", json={"model": None}).json()["challenger"] is None
    again = service.wait(service.client.put(f"{BASE}/challenger", json={"model": "m1"}))  # it is measured again
    assert (again["state"], service.client.get(BASE).json()["challenger"]) == ("succeeded", "m1")


@on_sqlite
def test_a_champion_is_never_its_own_challenger(service: Service) -> None:
    stocked(service, "m1", "m2")
    publish(service, "m1")
    refused = service.client.put(f"{BASE}/challenger", json={"model": "m1"})
    assert (refused.status_code, "only another model" in refused.json()["detail"]) == (409, True)
    publish(service, "m2")
    assert service.client.put(f"{BASE}/challenger", json={"model": "m1"}).json()["challenger"] == "m1"
    service.client.post(f"{BASE}:rollback").raise_for_status()
    shown = service.client.get(BASE).json()
    assert (shown["champion"], shown["challenger"]) == ("m1", None)
