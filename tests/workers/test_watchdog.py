"""A worker whose job does not stop, or takes too long or too much memory, ends, and the job with it."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.db.session import reading, writing
from app.db.tables import Collection, Job
from app.errors import Conflict
from app.queue import jobs
from app.queue.messages import ExamineGallery, FitFirst
from app.resources import Resources
from workers import watchdog
from workers.context import JobContext
from workers.handlers import HANDLERS
from workers.watchdog import MAX_STOP_SECONDS, Watchdog, limit_memory, read_resident_bytes
from workers.worker import Worker

GIB = 2.0**30


@contextmanager
def run_endless_job(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Worker, str]]:
    """Run a job that looks at nothing until the block ends."""
    started, may_end = threading.Event(), threading.Event()

    def handle(message: object, context: object) -> None:
        started.set()
        may_end.wait(30)

    monkeypatch.setitem(HANDLERS, ExamineGallery, handle)
    with writing(resources.database) as session:
        session.merge(Collection(id="c"))
        job = jobs.enqueue(session, ExamineGallery(collection="c")).id
    worker = Worker(resources, "training")
    thread = threading.Thread(target=worker.step)
    thread.start()
    assert started.wait(10)
    try:
        yield worker, job
    finally:
        may_end.set()
        thread.join()


def read_job(resources: Resources, job: str) -> Job:
    with reading(resources.database) as session:
        return session.get_one(Job, job)


def test_a_cancelled_job_that_does_not_stop_ends_with_its_process(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_endless_job(resources, monkeypatch) as (worker, job):
        exits: list[int] = []
        watched = Watchdog(worker, 1024 * GIB, exits.append)
        watched.check(100.0)
        with writing(resources.database) as session:
            jobs.cancel(session, session.get_one(Job, job))
        assert worker.current is not None
        worker.current.interrupted.set()  # as the thread that renews the lease does
        watched.check(200.0)
        watched.check(200.0 + MAX_STOP_SECONDS)
        assert (exits, read_job(resources, job).state) == ([], "running")
        watched.check(200.1 + MAX_STOP_SECONDS)
        assert (exits, read_job(resources, job).state) == ([1], "cancelled")


def test_a_job_that_takes_too_much_memory_fails(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_endless_job(resources, monkeypatch) as (worker, job):
        exits: list[int] = []
        watched = Watchdog(worker, 2 * GIB, exits.append)
        monkeypatch.setattr(watchdog, "read_resident_bytes", lambda: int(2 * GIB))
        watched.check(0.0)
        assert exits == []
        monkeypatch.setattr(watchdog, "read_resident_bytes", lambda: int(2 * GIB) + 1)
        watched.check(1.0)
        failed = read_job(resources, job)
        assert (exits, failed.state) == ([1], "failed")
        assert failed.problem is not None
        assert failed.problem["code"] == "TooMuchMemory"
        assert "2.0 GiB" in failed.problem["detail"]


def test_a_job_that_takes_too_long_fails(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_endless_job(resources, monkeypatch) as (worker, job):
        exits: list[int] = []
        watched = Watchdog(worker, 1024 * GIB, exits.append)
        assert worker.current is not None
        deadline = worker.current.deadline
        assert deadline == pytest.approx(time.monotonic() + resources.settings.max_training_seconds, abs=60)
        worker.current.check()
        watched.check(deadline + MAX_STOP_SECONDS)
        assert (exits, read_job(resources, job).state) == ([], "running")
        watched.check(deadline + MAX_STOP_SECONDS + 1)
        failed = read_job(resources, job)
        assert (exits, failed.state) == ([1], "failed")
        assert failed.problem is not None
        assert failed.problem["code"] == "TookTooLong"


def test_a_job_stops_at_its_deadline(resources: Resources) -> None:
    context = JobContext("job", "worker", resources, deadline=time.monotonic() - 1)
    with pytest.raises(Conflict, match="LIKENESS_MAX_TRAINING_SECONDS"):
        context.check()


def test_imports_have_no_deadline(resources: Resources) -> None:
    with writing(resources.database) as session:
        message = FitFirst(collection=session.merge(Collection(id="c")).id)
        job = jobs.enqueue(session, message)
        assert JobContext.bind(job, message, "worker", resources).deadline == math.inf


def test_a_worker_without_a_job_goes_on(resources: Resources) -> None:
    exits: list[int] = []
    Watchdog(Worker(resources, "training"), 0, exits.append).check(0.0)
    assert exits == []


def test_the_limit_is_a_share_of_the_memory_there_is() -> None:
    assert 2**20 < read_resident_bytes() < limit_memory()
