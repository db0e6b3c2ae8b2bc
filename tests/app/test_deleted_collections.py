"""A large collection that was deleted: nobody finds it, although its rows are still stored. No worker runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update

from app.db.session import reading, writing
from app.db.tables import Collection, Embedding, Face, Follower, Job, Subject
from app.galleries import deletion
from app.queue import jobs
from app.queue.messages import Sweep
from app.resources import Resources
from app.snapshots.writer import write_snapshot
from tests.app.test_access_matrix import OPERATIONS, Operation, fill_path
from tests.app.test_faces import wait_until
from tests.app.test_openapi import list_examples
from tests.openapi_checker import JSON, openapi_document
from tests.two_collections import MINE, OTHER, World, open_world
from workers.context import JobContext
from workers.handlers.sweep import sweep_all

OF_A_COLLECTION = [operation for operation in OPERATIONS if "{collection}" in operation.path]
CREATION = ("PUT", "/v1/collections/{collection}")
NEVER_MADE = "side-entrance"
PHOTO = ("photo.jpg", b"no photo", "image/jpeg")
LABELLER = f"{MINE}-labeller"


@pytest.fixture(scope="module")
def world(lasting: Resources) -> Iterator[World]:
    """Two collections of two faces, of which one is deleted as a large one."""
    with pytest.MonkeyPatch.context() as patch, open_world(lasting) as opened:
        patch.setattr(deletion, "ROWS_PER_STEP", 1)
        wait_until(lambda: count_followers(lasting) == 1)
        opened.send("DELETE", f"/v1/collections/{MINE}", "admin").raise_for_status()
        wait_until(lambda: search(opened).status_code == 404)  # processes drop its index within a second
        yield opened


def search(world: World) -> httpx.Response:
    return world.send("POST", f"/v1/collections/{MINE}/search:by-embedding", "admin", json={"vector": [0.5]})


def count_followers(resources: Resources) -> int:
    with reading(resources.database) as session:
        return session.scalar(select(func.count()).where(Follower.collection_id == MINE)) or 0


def read_metrics(world: World) -> list[str]:
    return world.send("GET", "/metrics", "admin").raise_for_status().text.splitlines()


def make_body(operation: Operation) -> dict[str, Any]:
    """Make the body of a request from the examples of the document."""
    described = openapi_document()["paths"][operation.path][operation.method.lower()]
    content = described.get("requestBody", {}).get("content", {})
    if JSON in content:
        return {"json": list_examples(content[JSON])[0]}
    if "multipart/form-data" in content:
        [example, *_] = list_examples(content["multipart/form-data"])
        return {"files": dict.fromkeys(example, PHOTO)}
    return {}


def send(world: World, operation: Operation, path: str) -> httpx.Response:
    return world.client.request(operation.method, path, headers=world.headers["admin", ()], **make_body(operation))


@pytest.mark.parametrize("operation", OF_A_COLLECTION, ids=lambda o: f"{o.method} {o.path}")
def test_every_operation_answers_as_if_it_had_never_been_made(world: World, operation: Operation) -> None:
    path = fill_path(world, operation, MINE)
    answer = send(world, operation, path)
    if (operation.method, operation.path) == CREATION:
        assert (answer.status_code, answer.json()["code"]) == (409, "ResourceInUse")
        assert "is being deleted" in answer.json()["detail"]
        return
    never = send(world, operation, path.replace(f"/collections/{MINE}", f"/collections/{NEVER_MADE}", 1))
    assert (answer.status_code, never.status_code) == (404, 404), answer.text
    assert answer.json()["detail"] == never.json()["detail"].replace(NEVER_MADE, MINE)


def test_a_bound_key_finds_it_no_more(world: World) -> None:
    answer = world.send("GET", f"/v1/collections/{MINE}/faces", "admin", MINE)
    assert (answer.status_code, answer.json()["detail"]) == (404, f"no collection {MINE!r}")
    assert world.send("GET", "/v1/collections", "admin", MINE).json()["collections"] == []


def test_lists_leave_it_out(world: World) -> None:
    listed = world.send("GET", "/v1/collections", "admin").json()["collections"]
    assert [collection["id"] for collection in listed] == [OTHER]
    labels = world.send("GET", "/v1/labels", "admin").json()["labels"]
    assert [label["by"] for label in labels] == [f"{OTHER}-labeller"]
    assert MINE not in "".join(line for line in read_metrics(world) if line.startswith("likeness_faces"))


def test_its_faces_take_no_labels(world: World) -> None:
    first, second = world.rows[MINE].faces
    label = {"face_a": first, "face_b": second, "same": True, "task": "identity"}
    refused = world.send("POST", "/v1/labels", "admin", json={"labels": [label]})
    assert (refused.status_code, refused.json()["code"]) == (422, "ResourceNotFound")
    answer = {"members": [first, second], "outliers": [], "task": "identity"}
    refused = world.send("POST", "/v1/labels:answer-cluster", "admin", json=answer)
    assert refused.status_code == 422, refused.text
    assert "no face" in refused.text


def test_its_labels_cannot_be_withdrawn(world: World) -> None:
    answer = world.send("DELETE", "/v1/labels", "admin", params={"by": LABELLER}).raise_for_status().json()
    assert answer["withdrawn"] == 0


def test_its_jobs_are_cancelled_and_none_writes_for_it_any_more(world: World) -> None:
    with reading(world.resources.database) as session:
        mine = list(session.scalars(select(Job).where(Job.body["collection"].as_string() == MINE)))
        live = {job.kind for job in mine if job.state in jobs.LIVE_STATES}
        assert live == {"erase"}
        bound = [jobs.read_message(job) for job in mine if job.kind != "erase"]
        assert bound
        assert not any(jobs.is_bound(session, message) for message in bound)


def test_no_process_follows_it(world: World) -> None:
    def is_followed() -> bool:
        return any(line.startswith("likeness_index_vectors") and MINE in line for line in read_metrics(world))

    wait_until(lambda: not is_followed())
    assert count_followers(world.resources) == 0


def test_a_snapshot_leaves_it_out(world: World, tmp_path: Path) -> None:
    home = world.resources.settings.home
    manifest = write_snapshot(world.resources.database, home, tmp_path / "new", None, lambda *_: None)
    assert (manifest.rows["collections"], manifest.rows["faces"]) == (1, 2)


def test_a_sweep_leaves_it_to_its_job(world: World) -> None:
    resources = world.resources
    with writing(resources.database) as session:
        session.execute(update(Subject).where(Subject.collection_id == MINE).values(retain_until=1.0))
    sweep_all(Sweep(), JobContext("none", "w", resources))
    with reading(resources.database) as session:
        assert session.get_one(Collection, MINE).is_deleted
        rows = select(Embedding).join(Face, Face.pk == Embedding.face_pk).where(Face.collection_id == MINE)
        assert len(session.scalars(rows).all()) == 2
