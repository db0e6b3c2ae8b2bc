"""A collection of imported vectors in the rest of the service: erasure, snapshots, and what works on faces."""

from pathlib import Path

import numpy as np
from sqlalchemy import select

from app.config import Settings
from app.db.session import reading
from app.db.tables import Embedding, Face, Subject
from app.snapshots.collection_restore import restore_collection
from app.snapshots.manifest import SnapshotManifest
from app.snapshots.writer import write_snapshot
from app.storage.recognisers.external_models import make_external_model
from ml.descriptors.external import External
from ml.types import Rows
from tests.erasure_traces import Traces, find_traces
from tests.flows.test_imported_vectors import BASE, DIM, EXTERNAL, PEOPLE, PHOTOS, find_nearest, gallery, send
from tests.npy import draw_people
from tests.service import Service, run_service
from tests.workers.test_erasing import wait_until_final

__all__ = ["gallery"]

DESCRIPTOR = External(recogniser="arcface-r100", size=DIM, metric="cosine")


def test_an_erased_vector_is_gone_from_every_store_and_the_rest_is_restored(
    gallery: tuple[Service, Rows, list[str]],
) -> None:
    service, rows, _ = gallery
    taken = service.client.post("/v1/snapshots", json={"collection": "c"})
    assert service.wait(taken)["state"] == "succeeded"
    own = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)[:PHOTOS]
    listed = service.client.get(f"{BASE}/faces", params={"subject": "p000"}).json()["faces"]
    patterns = {face["image_id"]: face["image_id"].encode() for face in listed}
    with reading(service.resources.database) as session:
        pks = session.scalars(select(Face.pk).join(Subject).where(Subject.id == "p000")).all()
        vectors = session.scalars(select(Embedding.vector).where(Embedding.face_pk.in_(pks))).all()
    np.testing.assert_allclose([np.frombuffer(v, "<f4") for v in vectors], own, rtol=1e-5)
    patterns |= {f"vector {i}": bytes(vector) for i, vector in enumerate(vectors)}
    traces = Traces(patterns)
    assert len({trace.partition(" in ")[0] for trace in find_traces(service, traces)}) == 2 * PHOTOS
    erased = service.client.delete(f"{BASE}/subjects/p000").raise_for_status().json()
    receipt = wait_until_final(service, erased["erasure"])
    assert (receipt["removed"]["faces"], receipt["removed"]["embeddings"]) == (PHOTOS, PHOTOS)
    assert find_traces(service, traces) == []
    service.wait_for_indexes()
    assert find_nearest(service, rows[0])[0] != "p000"
    body = {"collection": "c", "name": "again"}
    restored = service.wait(service.client.post(f"/v1/snapshots/{taken.json()['snapshot']}:restore", json=body))
    assert restored["result"]["faces"] == PEOPLE * PHOTOS - PHOTOS, restored
    service.wait_for_indexes()
    again = service.client.post(
        "/v1/collections/again/search:by-embedding", json={"vector": rows[PHOTOS].astype(float).tolist()}
    )
    assert again.json()["faces"][0]["matches"][0]["subject"]["id"] == "p001"
    assert service.client.get("/v1/collections/again").json()["descriptor"] == {"external": EXTERNAL}
    training = {"collection": "again", "method": "wpca", "dim": 4, "holdout": 0}
    assert service.wait(service.client.post("/v1/trainings", json=training), 120)["state"] == "succeeded"


def test_a_snapshot_restores_the_vectors_under_another_champion(
    gallery: tuple[Service, Rows, list[str]], tmp_path: Path
) -> None:
    """A model serves that was learned; the model that holds the vectors is no deployment's, and comes along."""
    service, rows, subjects = gallery
    for _ in range(2):  # the second publication makes the first model the previous one
        training = {"collection": "c", "method": "wpca", "dim": 4, "holdout": 0}
        model = service.wait(service.client.post("/v1/trainings", json=training), 120)["result"]["model"]
        body = {"model": model, "override": True, "reason": "about the steps"}
        assert (
            service.wait(service.client.post(f"{BASE}/deployments/identity:publish", json=body))["state"] == "succeeded"
        )
    deployment = service.client.get(f"{BASE}/deployments/identity").json()
    assert not {deployment["champion"], deployment["previous"]} & {make_external_model(DESCRIPTOR).id}
    folder = tmp_path / "snapshot"
    resources = service.resources
    write_snapshot(resources.database, resources.settings.home, folder, "c", lambda *_: None)
    assert SnapshotManifest.read(folder).missing == []
    other = Settings(home=tmp_path / "other", poll_seconds=0.05, lease_seconds=3, workers=1, default_recogniser="lbp")
    with run_service(other) as second:
        home, database = second.resources.settings.home, second.resources.database
        restore_collection(database, home, folder, "c", "c", lambda *_: None)
        second.wait_for_indexes()
        assert find_nearest(second, rows[7])[0] == subjects[7]
        job = second.wait(second.client.post("/v1/trainings", json=training), 120)
        assert job["state"] == "succeeded", job["problem"]
        more = second.wait(send(second, rows[:1] + 5, "subject\nlater"))
        assert more["result"]["enrolled"] == 1


def test_what_works_on_faces_works_on_vectors(gallery: tuple[Service, Rows, list[str]]) -> None:
    """People without a name, findings, the atlas, the forecast and suggestions: none needs a photo."""
    service = gallery[0]
    unnamed, _ = draw_people(6, 4, DIM, seed=5)
    assert service.wait(send(service, unnamed))["result"]["enrolled"] == len(unnamed)
    started = [
        service.client.post(f"{BASE}/clusters:discover", json={}),
        service.client.post(f"{BASE}:examine"),
        service.client.post(f"{BASE}/deployments/identity/atlas:draw", json={"method": "pca"}),
        service.client.post(f"{BASE}:forecast", json={}),
    ]
    for answer in started:
        job = service.wait(answer, 120)
        refused = (job["problem"] or {}).get("code")
        assert job["state"] == "succeeded" or refused in ("TooFewLabels", "NotMeasured", "NotCalibrated"), job
    suggested = service.client.post("/v1/labels:suggest", json={"collection": "c", "limit": 3})
    assert suggested.status_code == 200, suggested.text
    shown = [
        service.client.get(f"{BASE}{path}")
        for path in ("/clusters", "/findings", "/deployments/identity/atlas", "/forecast", "/subjects")
    ]
    assert {answer.status_code for answer in shown} <= {200, 404}
    assert service.client.get("/v1/recognisers").status_code == 200
    assert service.client.get("/metrics").status_code == 200
