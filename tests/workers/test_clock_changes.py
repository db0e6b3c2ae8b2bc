"""The clock is set back after it was ahead: what was stored meanwhile seems to come from the future."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import func, select

from app.collections.schemas import CollectionIn
from app.collections.service import put_collection
from app.db.session import reading, writing
from app.db.tables import Collection, Follower, Job, now
from app.db.visibility import RestrictedSession
from app.galleries.deletion import delete_collection
from app.publishing import pointers
from app.queue import jobs
from app.queue.messages import ExamineGallery, Sweep
from app.resources import Resources
from app.serving.reporter import have_followers_caught_up
from app.snapshots.manifest import SnapshotManifest
from app.storage.snapshot_folders import locate_snapshot
from tests.service import ERASURE_RETRY_SECONDS
from tests.workers.test_erase import add, collection, work
from tests.workers.test_erasing import erase_subject, read_state, work_until
from tests.workers.test_kept_snapshots import find_image, holds, take_directly
from workers.importing.completion import are_models_current
from workers.schedule import SWEEP_SECONDS, Schedule

HOUR, DAY = 3_600.0, 86_400.0


@contextmanager
def clock_ahead(seconds: float) -> Iterator[None]:
    """Set the clock of all that this process runs ahead for a while."""
    read, read_ns = time.time, time.time_ns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: read() + seconds)
        patch.setattr(time, "time_ns", lambda: read_ns() + int(seconds * 1e9))
        yield


@pytest.fixture
def ahead(resources: Resources) -> Resources:
    """A collection of four faces of two subjects with two snapshots, all made two hours ahead; nothing runs."""
    with clock_ahead(2 * HOUR):
        with writing(resources.database) as session:
            collection(session, "staff")
        for n in range(4):
            add(resources, n)
        take_directly(resources, "single", "staff")
        take_directly(resources, "whole")
    return resources


def test_an_erased_subject_is_in_no_snapshot(ahead: Resources) -> None:
    image, folders = find_image(ahead, "s0"), [locate_snapshot(ahead.settings.home, n) for n in ("single", "whole")]
    assert all(holds(folder, image) for folder in folders)
    erasure = erase_subject(ahead)
    work_until(ahead, lambda: read_state(ahead, erasure) == "final")
    for folder in folders:
        assert not holds(folder, image)
        assert SnapshotManifest.read(folder).rows["subjects"] == 1


def test_a_deleted_collection_is_in_no_snapshot_and_leaves_no_file(ahead: Resources) -> None:
    image, home = find_image(ahead, "s0"), ahead.settings.home
    for path in (ahead.blobs.root / "c-staff").rglob("*"):
        os.utime(path, (now() + 2 * HOUR,) * 2)
    with writing(ahead.database) as session:
        erasure = delete_collection(session, pointers.lock_collection(session, "staff")).id
    work_until(ahead, lambda: read_state(ahead, erasure) == "final")
    assert not locate_snapshot(home, "single").exists()
    assert not holds(locate_snapshot(home, "whole"), image)
    assert set(ahead.blobs.names("staff")) == set()


def test_an_erasure_waits_for_a_job_that_seems_to_have_begun_later(ahead: Resources) -> None:
    with clock_ahead(2 * HOUR), writing(ahead.database) as session:
        job = jobs.enqueue(session, ExamineGallery(collection="staff"))
        job.state, job.started_at, job.worker = "running", now(), "another"
    erasure = erase_subject(ahead)
    for _ in range(3):
        work(ahead)
        time.sleep(1.2 * ERASURE_RETRY_SECONDS)
    assert read_state(ahead, erasure) == "pending"
    with writing(ahead.database) as session:
        jobs.end(session, job.id, "succeeded")
    work_until(ahead, lambda: read_state(ahead, erasure) == "final")


def test_a_process_that_died_then_holds_up_nothing(resources: Resources) -> None:
    with writing(resources.database) as session:
        session.add(Collection(id="staff", change=5))
        session.flush()
        follower = {"collection_id": "staff", "task": "identity", "model_id": "m", "vectors": 0}
        session.add(Follower(process="dead", change=1, seen_at=now() + HOUR, **follower))
    with reading(resources.database) as session:
        assert have_followers_caught_up(session, "staff", 5)
        assert are_models_current(session, "staff", now())


def test_jobs_that_were_put_back_or_claimed_then_run_at_once(resources: Resources) -> None:
    with clock_ahead(DAY), writing(resources.database) as session:
        put_back, claimed = jobs.enqueue(session, Sweep(), delay=60).id, jobs.enqueue(session, Sweep()).id
        row = jobs.claim(session, queue="default", worker="dead", lease=15)
        assert row is not None
        assert row.id == claimed
    with writing(resources.database) as session:
        assert jobs.is_any_due(session, "default")
        assert jobs.free_abandoned(session) == 1
        first, second = (jobs.claim(session, queue="default", worker="w", lease=15) for _ in range(2))
        assert first is not None
        assert second is not None
        assert {first.id, second.id} == {put_back, claimed}


def test_a_sweep_is_due_although_the_last_seems_to_come_from_tomorrow(resources: Resources) -> None:
    def count_sweeps() -> int:
        with reading(resources.database) as session:
            return session.scalar(select(func.count()).where(Job.kind == Sweep.kind)) or 0

    with clock_ahead(DAY):
        Schedule(resources).tick()
    for _ in range(2):
        Schedule(resources).tick()
        assert count_sweeps() == 2
    with clock_ahead(2 * SWEEP_SECONDS):
        Schedule(resources).tick()
    assert count_sweeps() == 3


def test_a_collection_that_is_made_again_is_younger_than_what_the_deleted_one_has_left(ahead: Resources) -> None:
    with clock_ahead(2 * HOUR), writing(ahead.database) as session:
        jobs.enqueue(session, ExamineGallery(collection="staff"))
    with writing(ahead.database) as session:
        erasure = delete_collection(session, pointers.lock_collection(session, "staff")).id
    work_until(ahead, lambda: read_state(ahead, erasure) == "final")
    with writing(ahead.database) as session:
        put_collection(session, ahead, "staff", CollectionIn())
    with RestrictedSession(ahead.database, ["staff"]) as session:
        assert session.scalars(select(Job)).all() == []
    with clock_ahead(3 * HOUR), writing(ahead.database) as session:
        jobs.enqueue(session, ExamineGallery(collection="staff"))
    with RestrictedSession(ahead.database, ["staff"]) as session:
        assert len(session.scalars(select(Job)).all()) == 1
