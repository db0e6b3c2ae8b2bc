"""The rows of a large collection are deleted in steps, by a job that can be killed between and within them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, func, select, update

from app.collections.schemas import CollectionIn
from app.collections.service import delete_collection, put_collection
from app.db.session import reading, writing
from app.db.tables import Base, Collection, Erasure, Face, FaceCluster, Follower, Job, Label, Removal, now
from app.errors import Conflict
from app.galleries import deletion
from app.galleries.erasures import SERVED_BY, describe_erased, strike_out
from app.queue import jobs
from app.queue.messages import Erase
from app.resources import Resources
from app.storage.model_cache import LBP_MODEL
from tests.erasure_traces import find_traces, leave_traces
from tests.rows import GalleryWriter
from tests.service import Service
from tests.workers.test_erase import context, work
from tests.workers.test_erasing import wait_until_final
from workers.context import Interrupted, Later
from workers.erasing import collection_rows, resumption
from workers.erasing.collection_rows import delete_rows

FACES, LABELS, REMOVALS = 9, 8, 3
PEOPLE = FACES // 3
MAX_RUNS = 50
OWN_TABLES = ("faces", "subjects", "embeddings", "labels", "removals", "face_clusters", "deployments")
ROOT = Path(__file__).resolve().parents[2]
KILLED = """
import os, signal
from app.config import Settings
from app.galleries import deletion
from app.galleries.erasures import SERVED_BY, describe_erased, strike_out
from app.resources import open_resources
from workers.erasing import collection_rows
from workers.worker import Worker

deletion.ROWS_PER_STEP, steps, delete_some_rows = 2, [], collection_rows.delete_some_rows

def delete_and_die(session, collection):
    count = delete_some_rows(session, collection)
    steps.append(count)
    if len(steps) == 3:
        os.kill(os.getpid(), signal.SIGKILL)  # before its commit
    return count

collection_rows.delete_some_rows = delete_and_die
with open_resources(Settings.from_env(os.environ)) as resources:
    worker = Worker(resources, "default")
    while True:
        worker.step()
"""


@pytest.fixture
def large(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> Resources:
    """A collection `staff` of nine faces of three people, which counts as large, and `other`, which stays."""
    monkeypatch.setattr(deletion, "ROWS_PER_STEP", 2)
    fill(resources, "other")
    fill(resources, "staff")
    return resources


def fill(resources: Resources, name: str) -> None:
    gallery = GalleryWriter(resources, name).make(resources.models.get(LBP_MODEL))
    gallery.add({LBP_MODEL: np.eye(FACES, 9860, dtype=np.float32)}, [f"{name}-{n % PEOPLE}" for n in range(FACES)])
    with writing(resources.database) as session:
        for first, second in zip(gallery.pks[:LABELS], gallery.pks[1:], strict=False):
            session.add(Label(task="identity", face_a=first, face_b=second, same=True, by="ana"))
        session.add_all(Removal(collection_id=name, face_pk=pk, change=1) for pk in range(REMOVALS))
        session.add(FaceCluster(collection_id=name, probability=0.9))


def count_all(resources: Resources) -> dict[str, int]:
    with reading(resources.database) as session:
        tables = Base.metadata.tables
        return {name: session.scalar(select(func.count()).select_from(tables[name])) or 0 for name in OWN_TABLES}


def count_faces(resources: Resources) -> int:
    with reading(resources.database) as session:
        return session.scalar(select(func.count()).where(Face.collection_id == "staff")) or 0


def delete_staff(resources: Resources) -> Erasure:
    with writing(resources.database) as session:
        return session.get_one(Erasure, delete_collection(session, "staff"))


def read_job(resources: Resources) -> Job:
    with reading(resources.database) as session:
        return session.scalars(select(Job).where(Job.kind == Erase.kind)).one()


def finish(resources: Resources) -> Erasure:
    """Let the job go on at once, and return the erasure."""
    for _ in range(MAX_RUNS):
        with writing(resources.database) as session:
            session.execute(update(Job).where(Job.state == "queued").values(not_before=0.0))
            session.execute(update(Erasure).values(requested_at=now() - 10))
        work(resources)
        with reading(resources.database) as session:
            erasure = session.scalars(select(Erasure)).one()
        if erasure.state == "final":
            return erasure
    raise AssertionError(erasure.state)


def make_staff(resources: Resources) -> bool:
    with writing(resources.database) as session:
        return put_collection(session, resources, "staff", CollectionIn())[1]


def test_a_large_collection_is_hidden_at_once_and_deleted_by_its_job(large: Resources) -> None:
    before = count_all(large)
    delete_staff(large)
    assert count_all(large) == before | {"deployments": 1}, "only the deployment is gone"
    erasure = finish(large)
    assert count_all(large) == {name: (count + 1) // 2 for name, count in before.items()}, "the other collection stays"
    counted = {"faces": FACES, "embeddings": FACES, "labels": LABELS, "coordinates": 0}
    assert erasure.contents["removed"].items() >= counted.items()
    job = read_job(large)
    rows = FACES + PEOPLE + REMOVALS + 1  # and a cluster
    assert (job.state, job.done, job.total) == ("succeeded", rows + 1, rows + 1)
    assert erasure.targets == {}
    with reading(large.database) as session:
        assert session.get(Collection, "staff") is None


def test_a_small_collection_is_deleted_at_once(large: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "ROWS_PER_STEP", FACES)
    erasure = delete_staff(large)
    assert count_all(large)["faces"] == FACES
    assert erasure.contents["removed"]["faces"] == FACES
    assert make_staff(large), "its id is free at once"


def test_a_killed_worker_is_followed_by_another_which_leaves_nothing(large: Resources) -> None:
    delete_staff(large)
    settings = large.settings
    environment = os.environ | {
        "LIKENESS_HOME": str(settings.home),
        "LIKENESS_DATABASE_URL": settings.database_url,
        "LIKENESS_DEFAULT_RECOGNISER": "lbp",
    }
    ended = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert ended.returncode < 0, ended.stderr.decode()
    job = read_job(large)
    assert (count_faces(large), job.state, job.done) == (FACES - 4, "running", 4), "two steps of two are committed"
    with writing(large.database) as session:
        session.execute(update(Job).values(lease_until=1.0))
        assert jobs.free_abandoned(session) == 1
    erasure = finish(large)
    assert erasure.contents["removed"]["faces"] == FACES, "those before the kill count"
    job = read_job(large)
    assert (count_faces(large), job.state, job.done) == (0, "succeeded", job.total)
    with reading(large.database) as session:
        assert session.get(Collection, "staff") is None


def test_it_goes_on_after_every_step(large: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    erasure = delete_staff(large)
    real = collection_rows.delete_some_rows
    failures = iter(range(1, 100))

    def fail_first(*arguments: object) -> int:
        count = real(*arguments)  # type: ignore[arg-type]
        if next(failures) % 2:
            raise Interrupted
        return count

    monkeypatch.setattr(collection_rows, "delete_some_rows", fail_first)
    monkeypatch.setattr(collection_rows, "TURN_SECONDS", 0.0)
    left = [count_faces(large)]
    while left[-1]:
        for _ in range(2):
            with pytest.raises((Interrupted, Later)):
                delete_rows(context(large), erasure)
            left.append(count_faces(large))
        with reading(large.database) as session:
            erasure = session.get_one(Erasure, erasure.id)
    assert left == [9, 9, 7, 7, 5, 5, 3, 3, 1, 1, 0], "a step that fails is undone, and repeated"
    assert erasure.contents["removed"]["faces"] == FACES


def test_a_process_that_drops_the_collection_while_its_rows_are_described_is_not_waited_for(
    large: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(large.database) as session:
        served = {"collection_id": "staff", "task": "identity", "model_id": LBP_MODEL, "change": 1, "vectors": FACES}
        session.add_all(Follower(process=name, **served) for name in ("first", "second"))
    erasure = delete_staff(large)

    def describe_and_drop(*arguments: Any) -> Any:
        with writing(large.database) as session:
            strike_out(session, "first", {("staff", erasure.collection_created_at)})
        return describe_erased(*arguments)

    monkeypatch.setattr(collection_rows, "describe_erased", describe_and_drop)
    assert set(delete_rows(context(large), erasure).targets[SERVED_BY]) == {"second"}


def test_an_erasure_without_its_job_is_resumed_between_steps(large: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    erasure = delete_staff(large)
    monkeypatch.setattr(collection_rows, "TURN_SECONDS", 0.0)
    with pytest.raises(Later):
        delete_rows(context(large), erasure)
    with writing(large.database) as session:
        session.execute(delete(Job))
    assert resumption.resume_erasures(large) == 1
    assert finish(large).contents["removed"]["faces"] == FACES


def test_the_id_is_free_once_the_rows_are_gone(large: Resources) -> None:
    erasure = delete_staff(large)
    with pytest.raises(Conflict, match="is being deleted"):
        make_staff(large)
    delete_rows(context(large), erasure)
    assert make_staff(large)
    fill_again = GalleryWriter(large, "staff")
    fill_again.add({LBP_MODEL: np.eye(1, 9860, dtype=np.float32)}, ["new"])
    finish(large)
    assert count_faces(large) == 1, "the job of the earlier one leaves the faces of the new one"


def test_a_large_collection_leaves_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = leave_traces(service, "staff")
    monkeypatch.setattr(deletion, "ROWS_PER_STEP", 1)
    gone = service.client.delete("/v1/collections/staff").raise_for_status()
    receipt = wait_until_final(service, gone.headers["X-Erasure"])
    assert find_traces(service, traces) == []
    removed = receipt["removed"]
    assert (removed["faces"], removed["photos"], removed["labels"]) == (4, 4, 1)
